//! One step of a CronJob: which of its times has come, and what becomes of its Jobs (upstream: `syncCronJob`).
//!
//! Owns when a missed time counts: on a node whose clock starts in 1970, or is set while it runs, nothing starts twice
//! and nothing in a crowd.
//!
//! Pure: what it returns depends on its arguments alone.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::environment::FLOOR;
use super::fields::{at, list, text, time};
use super::item::Item;
use super::job::finished;
use super::world::World;
use crate::model::cron::{Schedule, Zone};
use crate::model::objects::{ObjectKey, ObjectKind};
use crate::model::ordered::Sortable as _;
use crate::model::types::Timestamp;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// A start that is later is a missed one.
const LATE: Duration = Duration::from_secs(60);
/// Missed starts of several CronJobs come one after another.
const BETWEEN_MISSED: Duration = Duration::from_secs(10);
/// Between looks at a clock that is not known to be right.
const UNSETTLED: Duration = Duration::from_secs(60);
/// Between looks for a time zone that the node does not have.
const NO_ZONE: Duration = Duration::from_secs(300);
/// A time so far ahead was written by a clock that was wrong.
const AHEAD: Duration = Duration::from_secs(24 * 3_600);
/// Upstream's: a start never comes a moment early.
const AFTER: Duration = Duration::from_millis(100);

struct CronJobStep<'s, 'e> {
    world: &'s mut World<'e>,
    cron: &'s mut Item,
    /// `lastScheduleTime`, `lastSuccessfulTime`.
    times: Map<String, Value>,
    active: Vec<Value>,
}

pub(super) fn step(world: &mut World<'_>, cron: &mut Item) {
    let mut times = cron.at("/status").as_object().cloned().unwrap_or_default();
    times.remove("active");
    let active = list(cron.body(), "/status/active").to_vec();
    let mut step = CronJobStep { world, cron, times, active };
    step.follow_jobs();
    step.clean_up();
    if !step.cron.is_deleted() && step.cron.at("/spec/suspend") != true {
        step.schedule();
    }
    let CronJobStep { cron, mut times, active, .. } = step;
    if !active.is_empty() {
        times.insert("active".to_owned(), json!(active));
    }
    cron.set_status(times);
}

impl CronJobStep<'_, '_> {
    fn jobs(&self) -> Vec<ObjectKey> {
        self.world.owned(ObjectKind::Job, self.cron)
    }

    /// Jobs that are over leave the list of active ones, and so do those that are gone.
    fn follow_jobs(&mut self) {
        let mut succeeded = time(&Value::Object(self.times.clone()), "/lastSuccessfulTime");
        let mut known = Vec::new();
        for key in self.jobs() {
            let Some(job) = self.world.item(&key) else { continue };
            let (uid, end) = (job.object.uid.clone(), finished(job));
            let completed = time(job.body(), "/status/completionTime").filter(|_| end == Some("Complete"));
            let is_active = self.active.iter().any(|active| active["uid"] == uid.as_str());
            if let Some(end) = end.filter(|_| is_active) {
                self.active.retain(|active| active["uid"] != uid.as_str());
                let message = format!("Saw completed job: {}, condition: {end}", key.name);
                self.world.normal(self.cron, "SawCompletedJob", message);
            } else if end.is_none() && !is_active {
                let message = format!("Saw a job that the controller did not create or forgot: {}", key.name);
                self.world.warn(self.cron, "UnexpectedJob", message);
                self.active.push(reference(&key, &uid));
            }
            succeeded = succeeded.max(completed);
            known.push(uid);
        }
        let gone = |active: &&Value| !known.iter().any(|uid| active["uid"] == uid.as_str());
        for job in self.active.iter().filter(gone).cloned().collect::<Vec<_>>() {
            let message = format!("Active job went missing: {}", text(&job, "/name"));
            self.world.normal(self.cron, "MissingJob", message);
        }
        self.active.retain(|active| !gone(&active));
        if let Some(succeeded) = succeeded {
            self.times.insert("lastSuccessfulTime".to_owned(), json!(succeeded.to_rfc3339()));
        }
    }

    /// Removes the oldest of its Jobs that are over, beyond those that are kept.
    fn clean_up(&mut self) {
        for (kind, limit, default) in [
            ("Complete", "/spec/successfulJobsHistoryLimit", 3),
            ("Failed", "/spec/failedJobsHistoryLimit", 1),
        ] {
            let limit = usize::try_from(self.cron.int(limit, default)).unwrap_or_default();
            let mut jobs: Vec<(Option<Timestamp>, ObjectKey)> = Vec::new();
            for key in self.jobs() {
                let job = self.world.item(&key).filter(|job| finished(job) == Some(kind));
                if let Some(job) = job {
                    jobs.push((time(job.body(), "/status/startTime"), key));
                }
            }
            jobs.order_by(Ord::cmp);
            let beyond = jobs.len().saturating_sub(limit);
            for (_, key) in jobs.into_iter().take(beyond) {
                self.remove(&key);
            }
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.world.remove(key);
        self.active.retain(|active| active["name"] != key.name.as_str());
        self.world.normal(self.cron, "SuccessfulDelete", format!("Deleted job {}", key.name));
    }

    fn schedule(&mut self) {
        let zone_name = self.cron.text("/spec/timeZone").to_owned();
        let zone = match zone_name.as_str() {
            "" => Some(Ok(Rc::new(Zone::utc()))),
            name => self.world.env.zone(name),
        };
        let Some(zone) = zone else { return };
        let zone = match zone {
            Ok(zone) => zone,
            Err(why) => {
                // When it was only looked for again, it is no news.
                if !self.world.is_due(self.cron) {
                    let message = format!("invalid timeZone: {zone_name:?}: {why}");
                    self.world.warn(self.cron, "UnknownTimeZone", message);
                }
                self.world.wake_in(NO_ZONE);
                return;
            }
        };
        let line = self.cron.text("/spec/schedule").to_owned();
        let schedule = match Schedule::parse(&line) {
            Ok(schedule) => schedule,
            Err(why) => {
                let message = format!("unparseable schedule: {line:?} : {why}");
                self.world.warn(self.cron, "UnparseableSchedule", message);
                return;
            }
        };
        // Until the clock is set there is no time that could have come.
        let Some(believed) = self.world.env.clock_since() else {
            self.world.wake_in(FLOOR.saturating_since(self.world.now));
            return;
        };
        let now = self.world.now;
        let last = seconds(self.last_known(believed));
        let newest = schedule.missed(last, seconds(now), &zone).map(|missed| missed.last);
        let earliest = self.earliest().map_or(last, |earliest| last.max(seconds(earliest)));
        if let Some(newest) = newest.filter(|newest| *newest > earliest) {
            if schedule.missed(earliest, seconds(now), &zone).is_some_and(|missed| missed.are_many) {
                let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
                self.world.warn(self.cron, "TooManyMissedTimes", message.to_owned());
            }
            self.begin(Timestamp::from_secs(newest), &zone);
        }
        // `@every` counts from the time before, whenever this step is taken.
        if let Some(next) = schedule.next(newest.unwrap_or(last), &zone) {
            let next = Timestamp::from_secs(next).saturating_add(AFTER);
            self.world.wake_in(next.saturating_since(now));
        }
    }

    /// The time that its times come after: that of its newest Job, or that of its creation.
    fn last_known(&self, believed: Timestamp) -> Timestamp {
        let now = self.world.now;
        let last = time(&Value::Object(self.times.clone()), "/lastScheduleTime");
        let known = last.unwrap_or(self.cron.object.created);
        let is_wrong = known < FLOOR || known > now.saturating_add(AHEAD);
        if is_wrong { believed } else { known }
    }

    /// Times until then have missed the deadline.
    fn earliest(&self) -> Option<Timestamp> {
        let deadline = self.cron.at("/spec/startingDeadlineSeconds").as_u64()?;
        Some(self.world.now.saturating_sub(Duration::from_secs(deadline)))
    }

    /// The Job of this time, unless there is a reason against it.
    fn begin(&mut self, scheduled: Timestamp, zone: &Zone) {
        let late = self.world.now.saturating_since(scheduled);
        if late > LATE {
            // Missed while the node was off, or while its clock was wrong.
            if !self.world.env.clock_is_settled() {
                self.world.wake_in(UNSETTLED);
                return;
            }
            if self.has_missed_start() {
                self.world.wake_in(BETWEEN_MISSED);
                return;
            }
        }
        match self.cron.text("/spec/concurrencyPolicy") {
            "Forbid" if !self.active.is_empty() => {
                // Once for each time: steps come for other reasons, too.
                if self.world.is_due(self.cron) {
                    let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
                    self.world.normal(self.cron, "JobAlreadyActive", message.to_owned());
                }
                return;
            }
            "Replace" => {
                let running: Vec<String> =
                    self.active.iter().map(|active| text(active, "/name").to_owned()).collect();
                for name in running {
                    let namespace = self.cron.object.key.namespace.clone();
                    self.remove(&ObjectKey { kind: ObjectKind::Job, namespace, name });
                }
            }
            _ => {}
        }
        if self.create(scheduled, zone) {
            self.times.insert("lastScheduleTime".to_owned(), json!(scheduled.to_rfc3339()));
        }
    }

    /// A missed start of any CronJob has been made up for a moment ago.
    fn has_missed_start(&self) -> bool {
        self.world.of_all(ObjectKind::Job).any(|job| {
            let created = job.object.created;
            let scheduled = job.annotation(SCHEDULED).and_then(Timestamp::parse_rfc3339);
            scheduled.is_some_and(|scheduled| created.saturating_since(scheduled) > LATE)
                && self.world.now.saturating_since(created) < BETWEEN_MISSED
        })
    }

    /// The name is a lock: a time has one Job, whatever becomes of the agent.
    fn create(&mut self, scheduled: Timestamp, zone: &Zone) -> bool {
        let template = self.cron.at("/spec/jobTemplate").clone();
        let name = format!("{}-{}", self.cron.name(), seconds(scheduled) / 60);
        let namespace = self.cron.object.key.namespace.clone();
        if let Some(known) = self.world.get(ObjectKind::Job, &namespace, &name) {
            let is_own = known.owner() == Some(&self.cron.object.uid);
            if !is_own {
                let message = format!("Error creating job: jobs.batch {name:?} already exists");
                self.world.warn(self.cron, "FailedCreate", message);
            }
            return is_own;
        }
        let mut metadata = json!({"labels": at(&template, "/metadata/labels"), "annotations": at(&template, "/metadata/annotations")});
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        metadata["annotations"][SCHEDULED] = json!(zoned(scheduled, zone));
        let body = json!({"spec": at(&template, "/spec"), "status": {}});
        match self.world.create(self.cron, ObjectKind::Job, name, &metadata, body) {
            Ok(key) => {
                let uid = self.world.item(&key).map(|job| job.object.uid.clone()).unwrap_or_default();
                self.world.normal(self.cron, "SuccessfulCreate", format!("Created job {}", key.name));
                self.active.push(reference(&key, &uid));
                true
            }
            Err(why) => {
                self.world.warn(self.cron, "FailedCreate", format!("Error creating job: {why}"));
                false
            }
        }
    }
}

fn reference(key: &ObjectKey, uid: &str) -> Value {
    json!({
        "apiVersion": key.kind.api_version(),
        "kind": key.kind.as_str(),
        "namespace": key.namespace,
        "name": key.name,
        "uid": uid,
    })
}

fn seconds(time: Timestamp) -> i64 {
    time.as_nanos().div_euclid(1_000_000_000)
}

/// RFC 3339 in the zone of the CronJob.
fn zoned(time: Timestamp, zone: &Zone) -> String {
    let offset = zone.offset(seconds(time));
    if offset == 0 {
        return time.to_rfc3339();
    }
    let local = Timestamp::from_secs(seconds(time) + offset).to_rfc3339();
    let (sign, minutes) = if offset < 0 { ('-', -offset / 60) } else { ('+', offset / 60) };
    format!("{}{sign}{:02}:{:02}", local.trim_end_matches('Z'), minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests;
