//! Manifests, their signatures and keys, made by minisign 0.11.
//!
//! Owns nothing else. The secret keys are gone.

/// The pod `a`.
pub(crate) const BODY: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostname: \"1\", containers: [{name: c, image: x}]}}\n";

pub(crate) const KEY: &str = "untrusted comment: minisign public key 1DE992CA9CA167A2
RWSiZ6GcypLpHSXCEsa/KXg6SfzE4zJYCmpSUlKA5oPz5TjOoGHkA0Si
";

/// A second key pair's public key.
pub(crate) const OTHER_KEY: &str = "untrusted comment: minisign public key C807C925F54C6D69
RWRpbUz1JckHyNIuyOd4xCZb2sXu5En7X++YzVszQ0Tu+P60b7TMmMXL
";

/// Over the body's hash, as minisign has it since 0.10.
pub(crate) const SIGNATURE: &str = "untrusted comment: signature of a test
RUSiZ6GcypLpHRbw632vxU4PvcnbV80m2zPQzq+fHN+K1qJ3tflvy2JxmoijLjF6ywi/sDme+Im9jyezNoYEyGsjZDPyGv5d4wg=
trusted comment: fleet
eoKw/Xpqzd9wviYI6A09W9sCk56wW6ysL0OFvAwSLr3JZY8c73YjTtmpMJaGJzlWRFjO+vnBn3Yo/9lEe1gYDA==
";

/// Over the body itself (`minisign -S -l`).
pub(in crate::codec) const LEGACY: &str = "untrusted comment: signature of a test
RWSiZ6GcypLpHYGy9sQnAV/HBu8k4yYGALPZW0N7bROEpUWaptUus9P2lEfToDE8h41JWXntR4Dd2R9/ECBG4kVLhTMW3yqgPQM=
trusted comment: fleet
QCWj9VTq/vwYK3/rE8P+pGEEQx8a1owQxOqZtEeHAtOOXzb/C5rsdnLzf2g7wrp+GSd1+LvjMC8hCA3nGX0LAQ==
";

/// Of the signatures below, which say when they were made.
pub(crate) const DATED_KEY: &str = "untrusted comment: minisign public key D21B26EF945C2CA9
RWSpLFyU7yYb0heJHj5pBzDAFBMAkSfRzsDFrMaDPARqgj3a12N5ElYU
";

/// Bodies in the order in which they were signed: `timestamp:100`, `200` and `300`.
pub(crate) const DATED: [(&str, &str); 3] = [
    (
        BODY,
        "untrusted comment: signature of a test
RUSpLFyU7yYb0jLvO9m+eEZWtJ6BZGjA6XGxFdJ3euzFTXaSSbn9PX+7H4r2uygG39OqTFXEIWrZdOY5jkoiNYMtYU+0Q3AFHgQ=
trusted comment: timestamp:100	file:pods
QVXm+xSobqhhXgXCywIv/CSydaQZwzExgq77stSwW3Kkq64VLPIWjmYHk1/IsOhBbNMynM6HlOQWkVCkFnX6AA==
",
    ),
    (
        "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {hostname: \"1\", containers: [{name: c, image: x}]}}\n---\n{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {hostname: \"2\", containers: [{name: c, image: x}]}}\n",
        "untrusted comment: signature of a test
RUSpLFyU7yYb0sJC/8OOceQVDy4NG/zwRCpsC9TLkd/iXevA4o/sfD79Udd16b/px793mJKotWlgRUDp2I3O1K/371FM4X8OGQM=
trusted comment: timestamp:200	file:pods
dnGmD+lrfJvLR2EDuhyqOEGR7Fj03JQPeHoU52KOqq+8ZFT2xX/VoOvyV5w12ZXtIZbVMpuNkmOu7+ZO9nd3Cw==
",
    ),
    (
        "{apiVersion: v1, kind: PodList, items: []}\n",
        "untrusted comment: signature of a test
RUSpLFyU7yYb0tueZ6pFd9DGRRT8wV8Tk2medVVLdSe6oFe71XiSJMpMKYwOcYJaP51t1Uvyr2oFR8K8blK/M+xfdxELuV08Zgg=
trusted comment: timestamp:300	file:pods
KECWdRX3J29Uego44ItxD4zNRTGXpjUcQAynI8lv2hVC3xBwrFoSUAjjJLSZfsGftr8/Cpj9dPhwZxOiuN+xAw==
",
    ),
];

/// By the same key, without a time.
pub(crate) const UNDATED: (&str, &str) = (
    BODY,
    "untrusted comment: signature of a test
RUSpLFyU7yYb0jLvO9m+eEZWtJ6BZGjA6XGxFdJ3euzFTXaSSbn9PX+7H4r2uygG39OqTFXEIWrZdOY5jkoiNYMtYU+0Q3AFHgQ=
trusted comment: fleet
Gt8B1tQZriAf0QT16khFAtEJgNOiMgz7o9Z0qrMoE/MoMxVMnCzvYLmqSm1eYH/TOuqINLkEqmxmmDS4FBo/Dg==
",
);
