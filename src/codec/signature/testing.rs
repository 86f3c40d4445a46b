//! A body, its signatures and keys, made by minisign 0.11.
//!
//! Owns nothing else. The secret keys are gone.

pub const BODY: &[u8] = b"a=1";

pub const KEY: &str = "untrusted comment: minisign public key 1CB3023D384079F4
RWT0eUA4PQKzHEJx9oGPrFYTaS7nZN/ibi4JKCIeJVvJDFxM4J/qZ9ju
";

/// A second key pair's public key.
pub const OTHER_KEY: &str = "untrusted comment: minisign public key 2864ECC6A34600A4
RWSkAEajxuxkKO4G/KM2AsXUt718GXSn0HLJ6xx8hm41mSTYrt3rglrV
";

/// Over the body's hash, as minisign has it since 0.10.
pub const SIGNATURE: &str = "untrusted comment: signature of a test
RUT0eUA4PQKzHL3u/ndP2wAkjSTwJ2up1khHMUc/uibdftMkPcanPfZQxWZFsBDu2KjD80uIKge6DFljKm3uZWOScYENqNpC1gc=
trusted comment: fleet
6de7Ayh3WRmiDZlCDTpF9NXDfnIfGl0rbDWp7dgAPm0+p9VctyFotbDI+Bm3hq2t04gXRwKA9Mfyzmc3QzboCg==
";

/// Over the body itself (`minisign -S -l`).
pub(in crate::codec) const LEGACY: &str = "untrusted comment: signature from minisign secret key
RWT0eUA4PQKzHMvkDm65sV3F3bXDWO0SMThYOqhUZ8lWMmZU5P70LvmIaKigOflHPLQmnFL2qCTkqqyEQL6AwNx9phEfmvwzjw4=
trusted comment: fleet
pxq4CWLw6bJCfVa18lgmRVT49txE9l3zWy62VEA/yUckDK53LyzcyVn64YrQu8NwXeJyRNqBZH2NybhqafYmDQ==
";

/// Of the signatures below, which say when they were made.
pub const DATED_KEY: &str = "untrusted comment: minisign public key 102D8AF7C47CC087
RWSHwHzE94otENT/BMudkCDMi6NB/BHbT6+VrTzbb8QID9k7/AnKPplD
";

/// Bodies in the order in which they were signed: `timestamp:100`, `200` and `300`.
pub const DATED: [(&str, &str); 3] = [
    (
        "a=1",
        "untrusted comment: signature of a test
RUSHwHzE94otEHQkKvmiffBrWUETpa6zNO1cz1yFtl4aLQf7xOYwDHDO1DLl5zxa0yBn8F04eUuWfaF30Upmz/6yn5C63zqx0QM=
trusted comment: timestamp:100	file:pods
3Fad652tvfX1d6Gj2sbGkhjKcxi7jMszc8DR/g18hL7L6oUEoT3AZLjIzqZfU2AFIWZ7+JcOe3ZQot6pOo4zAQ==
",
    ),
    (
        "a=1\nb=2",
        "untrusted comment: signature of a test
RUSHwHzE94otENvlaaxb3VLFTpd51EM48Ru4JiiCsXA+XgTStsX+b6NhHGJh+8DgJdB8omXkhhSlwv4Uumdw5/CMmZcrwhv1yw0=
trusted comment: timestamp:200	file:pods
RPPWUwitflVnqxF4JfaAD5y/BkPj1y+WBFIMhqfr9gs8SO08dUydqJlrP+BPFJpGyivKkowLOom+6cqfHI3ACg==
",
    ),
    (
        "none",
        "untrusted comment: signature of a test
RUSHwHzE94otEP/s77F05ENBXxQpIpaFViDgkiFVU18YXe2/6Yptzb5N6SSfEYQsVQ/2gQxw4T9A3zT7EtVlP2v4LRVySgHVEQQ=
trusted comment: timestamp:300	file:pods
M+t4v1FJ3q4xHITpR5uR7qBMbrA+b5CzBuZERM1rq1r7OVL/ysVFYW/HYStXTOoZEcNwXD/hOQ3M/rXqzQldCg==
",
    ),
];

/// By the same key, without a time.
pub const UNDATED: (&str, &str) = (
    "a=1",
    "untrusted comment: signature of a test
RUSHwHzE94otEHQkKvmiffBrWUETpa6zNO1cz1yFtl4aLQf7xOYwDHDO1DLl5zxa0yBn8F04eUuWfaF30Upmz/6yn5C63zqx0QM=
trusted comment: fleet
oMpj3ym+EXr4ZEAsZTBl61MCFD3hMRaOsyX2lz0lOU4tMR7vKHhWhNkLuSvnMoHTRa/Qd2e6vRkjdtHcnldXAg==
",
);
