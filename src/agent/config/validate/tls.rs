//! Rules about TLS names, as Go knows them.
//!
//! Owns the names.

use super::check::Check;

/// The suites that Go still implements: first the secure ones, then the weak ones that are accepted.
const SUITES: [&str; 27] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];
/// How many of the suites are secure.
const SOUND: usize = 15;
/// P-256, P-384, P-521, X25519, and the hybrids with ML-KEM.
const CURVES: [i32; 7] = [23, 24, 25, 29, 4587, 4588, 4589];

/// True for a suite that works and should not be used.
pub(super) fn is_weak(suite: &str) -> bool {
    SUITES[SOUND..].contains(&suite)
}

pub(super) fn check(check: &mut Check<'_>) {
    let config = check.config;
    for (index, suite) in config.tls_cipher_suites.iter().enumerate() {
        if !SUITES.contains(&suite.as_str()) {
            let hint = crate::agent::config::suggest::nearest(suite, SUITES.into_iter());
            let hint = hint.map_or_else(|| "a name like TLS_AES_128_GCM_SHA256".to_owned(), str::to_owned);
            check.findings.add(
                format!("tlsCipherSuites[{index}]"),
                format!("{suite:?} is not a supported cipher suite; use {hint}"),
            );
        }
    }
    let versions = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
    check.one_of("tlsMinVersion", &config.tls_min_version, &versions);
    for (index, curve) in config.tls_curve_preferences.iter().enumerate() {
        if !CURVES.contains(curve) {
            let problem = format!("{curve} is not a supported curve ID; use one of {CURVES:?}");
            check.findings.add(format!("tlsCurvePreferences[{index}]"), problem);
        }
    }
    if config.tls_cert_file.is_empty() != config.tls_private_key_file.is_empty() {
        // Upstream detects this only when it loads the pair; here it is reported with the other errors.
        let (set, missing) = if config.tls_cert_file.is_empty() {
            ("tlsPrivateKeyFile", "tlsCertFile")
        } else {
            ("tlsCertFile", "tlsPrivateKeyFile")
        };
        check.findings.add(set, format!("requires {missing}"));
    }
}
