//! The replacement on a machine of maps, whose power can be cut before every effect.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::cmd::control_plane::manifests::{CONTROLLER_MANAGER, SCHEDULER};

const COMPONENTS: [&str; 4] = [ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER];

#[derive(Default)]
struct Fake {
    files: BTreeMap<PathBuf, String>,
    record: Option<String>,
    /// Manifests that make no healthy pod.
    broken: BTreeSet<String>,
    /// Components whose manifest before is broken, too, once another has run.
    lost: bool,
    said: String,
    renewed: Vec<String>,
    /// So many more effects, then the power is cut.
    power: Option<usize>,
    was_cut: bool,
}

impl Fake {
    /// All components run their old manifests.
    fn new() -> Self {
        let mut fake = Self::default();
        for component in COMPONENTS {
            fake.files.insert(fake.manifest(component), format!("old {component}"));
        }
        fake
    }

    fn effect(&mut self) -> Result<(), InitError> {
        match &mut self.power {
            Some(0) => {
                self.was_cut = true;
                return Err(InitError::Aborted);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn texts(&self) -> Vec<String> {
        COMPONENTS.iter().map(|component| self.files[&self.manifest(component)].clone()).collect()
    }

    fn are_all(&self, which: &str) -> bool {
        self.texts().iter().all(|text| text.starts_with(which))
    }

    fn saved(&self) -> Option<ReplacementRecord> {
        self.record.as_deref().map(|text| ReplacementRecord::parse(text).unwrap())
    }
}

impl UpgradeWorld for Fake {
    fn say(&mut self, text: &str) -> Result<(), InitError> {
        self.said.push_str(text);
        Ok(())
    }

    fn read(&self, path: PathBuf) -> Result<Option<String>, InitError> {
        Ok(self.files.get(&path).cloned())
    }

    fn manifest(&self, component: &str) -> PathBuf {
        format!("/m/{component}.yaml").into()
    }

    fn write(&mut self, path: PathBuf, text: &str) -> Result<(), InitError> {
        self.effect()?;
        self.files.insert(path, text.to_owned());
        Ok(())
    }

    fn save(&mut self, record: &ReplacementRecord) -> Result<(), InitError> {
        self.effect()?;
        self.record = Some(record.to_text());
        Ok(())
    }

    fn forget(&mut self) -> Result<(), InitError> {
        self.effect()?;
        self.record = None;
        Ok(())
    }

    fn hash(&mut self, component: &str) -> Result<String, InitError> {
        Ok(self.files[&self.manifest(component)].clone())
    }

    fn wait(&mut self, component: &str, hash: WaitedHash<'_>) -> Result<(), String> {
        self.effect().map_err(|error| error.to_string())?;
        let runs = &self.files[&self.manifest(component)];
        let is_other = match hash {
            WaitedHash::Not(before) => runs != before,
            WaitedHash::Is(before) => runs == before,
        };
        if !is_other {
            return Err("the hash is wrong".to_owned());
        }
        if self.broken.contains(runs) || self.lost { Err("it ends at once".to_owned()) } else { Ok(()) }
    }

    fn renew(&mut self, component: &str) -> Result<(), InitError> {
        self.effect()?;
        self.renewed.push(component.to_owned());
        Ok(())
    }

    fn back_up_etcd(&mut self) -> Result<Option<PathBuf>, InitError> {
        self.effect()?;
        Ok(Some("/e".into()))
    }

    fn is_same(&self, one: &str, other: &str) -> bool {
        one == other
    }
}

fn task(record: Option<ReplacementRecord>, new: &[&'static str]) -> Replacement {
    let fresh = ReplacementRecord {
        version: "v2".to_owned(),
        began: "now".to_owned(),
        backup: "/b".into(),
        etcd_backup: None,
        replaced: Vec::new(),
        replacing: None,
        hashes: BTreeMap::new(),
    };
    let text = |component: &str| {
        let which = if new.contains(&component) { "new" } else { "old" };
        format!("{which} {component}")
    };
    Replacement {
        wanted: COMPONENTS.into_iter().map(|component| (component, text(component))).collect(),
        record: record.unwrap_or(fresh),
        renews: true,
        backs_up_etcd: true,
        limit: "5m0s".to_owned(),
    }
}

#[test]
fn components_are_replaced_in_order_and_nothing_twice() {
    let mut fake = Fake::new();
    assert_eq!(replace(&mut fake, task(None, &COMPONENTS)).unwrap(), COMPONENTS);
    assert!(fake.are_all("new") && fake.record.is_none(), "{:?}", fake.files);
    assert_eq!(fake.renewed, COMPONENTS);
    for component in COMPONENTS {
        assert_eq!(fake.files[&PathBuf::from(format!("/b/{component}.yaml"))], format!("old {component}"));
    }
    (fake.said, fake.renewed) = (String::new(), Vec::new());
    assert_eq!(replace(&mut fake, task(None, &COMPONENTS)).unwrap(), [""; 0]);
    assert_eq!(fake.said.matches("are equal, skipping upgrade").count(), 4, "{}", fake.said);
    assert_eq!((fake.renewed, fake.record), (Vec::new(), None));
}

#[test]
fn etcds_certificates_are_renewed_with_the_api_servers() {
    let mut fake = Fake::new();
    assert_eq!(replace(&mut fake, task(None, &[API_SERVER])).unwrap(), [API_SERVER]);
    assert_eq!(fake.renewed, [ETCD, API_SERVER]);
    let mut fake = Fake::new();
    replace(&mut fake, task(None, &[SCHEDULER])).unwrap();
    assert_eq!(fake.renewed, [SCHEDULER]);
}

#[test]
fn a_component_that_fails_takes_those_before_it_back() {
    for (broken, back, stays) in [
        (SCHEDULER, &[API_SERVER, CONTROLLER_MANAGER, SCHEDULER][..], &[ETCD][..]),
        (API_SERVER, &[API_SERVER], &[ETCD]),
        (ETCD, &[ETCD], &[]),
    ] {
        let mut fake = Fake::new();
        fake.broken.insert(format!("new {broken}"));
        let why = replace(&mut fake, task(None, &COMPONENTS)).unwrap_err().to_string();
        assert!(why.contains(&format!("{broken}: it ends at once. The earlier manifests are back")), "{why}");
        for component in back {
            assert_eq!(fake.files[&fake.manifest(component)], format!("old {component}"), "{broken}");
        }
        for component in stays {
            assert_eq!(fake.files[&fake.manifest(component)], format!("new {component}"), "{broken}");
        }
        assert_eq!(fake.record, None, "{broken}");
    }
}

#[test]
fn a_failed_way_back_keeps_the_record_and_names_the_backups() {
    let mut fake = Fake::new();
    fake.lost = true;
    let why = replace(&mut fake, task(None, &COMPONENTS)).unwrap_err().to_string();
    assert!(
        why.contains("etcd is not healthy again: it ends at once. Backups are in /b; etcd's data"),
        "{why}"
    );
    assert_eq!(fake.saved().unwrap().replacing.as_deref(), Some(ETCD));
    // The next run sees that the manifest before is there, and goes on.
    fake.lost = false;
    let saved = fake.saved().unwrap();
    let record = resume(&mut fake, saved).unwrap();
    replace(&mut fake, task(Some(record), &COMPONENTS)).unwrap();
    assert!(fake.are_all("new"));
}

/// The power is cut before the first effect, the second, and so on, until a run comes to its end.
#[test]
fn a_power_cut_at_any_moment_is_gone_on_from_or_undone() {
    for broken in [None, Some(API_SERVER), Some(SCHEDULER)] {
        let mut cuts = 0;
        loop {
            let mut fake = Fake::new();
            fake.broken.extend(broken.map(|component| format!("new {component}")));
            fake.power = Some(cuts);
            let ended = replace(&mut fake, task(None, &COMPONENTS));
            let was_cut = fake.was_cut;
            fake.power = None;
            // All of a manifest, and never without its backup.
            for component in COMPONENTS {
                let backup = fake.files.get(&PathBuf::from(format!("/b/{component}.yaml"))).cloned();
                let text = fake.files[&fake.manifest(component)].clone();
                assert!(text.starts_with("old ") || backup == Some(format!("old {component}")), "{cuts}");
                assert!(
                    text.starts_with("old ") || fake.record.is_some() || !was_cut || ended.is_ok(),
                    "{cuts}"
                );
            }
            let mut result = Ok(Vec::new());
            if was_cut {
                let record = fake.saved().map(|record| resume(&mut fake, record)).transpose();
                result = record.and_then(|record| replace(&mut fake, task(record, &COMPONENTS)));
            }
            match (broken, result) {
                (None, Ok(_)) => assert!(fake.are_all("new"), "{cuts}: {:?}", fake.texts()),
                (Some(_), Err(error)) => {
                    assert!(error.to_string().contains("manifests are back"), "{cuts}: {error}");
                    assert!(fake.texts()[1..].iter().all(|text| text.starts_with("old")), "{cuts}");
                }
                (Some(_), Ok(_)) => assert!(!was_cut && ended.is_err(), "{cuts}"),
                (None, Err(error)) => panic!("{cuts}: {error}"),
            }
            assert_eq!(fake.record, None, "{cuts}");
            if !was_cut {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 10, "{cuts}");
    }
}
