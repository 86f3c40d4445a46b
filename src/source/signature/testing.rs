//! A body, its signatures and keys, made by minisign 0.11.
//!
//! Owns nothing else. The secret keys are gone.

pub const BODY: &[u8] = b"a=1";

pub const KEY: &str = "untrusted comment: minisign public key 1CB3023D384079F4
RWT0eUA4PQKzHEJx9oGPrFYTaS7nZN/ibi4JKCIeJVvJDFxM4J/qZ9ju
";

/// Of somebody else.
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
pub const LEGACY: &str = "untrusted comment: signature from minisign secret key
RWT0eUA4PQKzHMvkDm65sV3F3bXDWO0SMThYOqhUZ8lWMmZU5P70LvmIaKigOflHPLQmnFL2qCTkqqyEQL6AwNx9phEfmvwzjw4=
trusted comment: fleet
pxq4CWLw6bJCfVa18lgmRVT49txE9l3zWy62VEA/yUckDK53LyzcyVn64YrQu8NwXeJyRNqBZH2NybhqafYmDQ==
";
