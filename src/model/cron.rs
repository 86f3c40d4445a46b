//! Cron lines: their grammar, and the times that they name (upstream: the standard parser of robfig/cron).
//!
//! Owns what happens when clocks change: a time of day that comes twice counts once, and one that is left out counts at
//! the moment of the change; lines for every hour follow the hours that pass.

mod zone;

use super::duration::GoDuration;
pub use zone::Zone;

const DAY: i64 = 86_400;
/// How far in the future a line may name its next time: `0 0 29 2 *` needs eight years at most.
const MAX_DAYS: i64 = 8 * 366 + 1;
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// The bits of the values that a field allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// Written as `*` or `?`.
    is_any: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Minute, hour, day of month, month, day of week.
    Line(Box<Line>),
    /// `@every 1h30m`, in seconds.
    Every(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
}

/// The most recent time of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// In seconds since the epoch.
    pub last: i64,
    /// There were more than a hundred.
    pub are_many: bool,
}

impl Schedule {
    /// # Errors
    /// What is wrong with the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let line = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            text => text,
        };
        if let Some(every) = line.strip_prefix("@every ") {
            let duration =
                GoDuration::parse(every).map_err(|why| format!("failed to parse duration {line}: {why}"))?;
            return Ok(Self::Every((duration.as_nanos() / 1_000_000_000).max(1)));
        }
        if line.starts_with('@') {
            return Err(format!("unrecognized descriptor: {line}"));
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            let found = fields.join(" ");
            return Err(format!("expected exactly 5 fields, found {}: [{found}]", fields.len()));
        };
        Ok(Self::Line(Box::new(Line {
            minute: Field::parse(minute, 0, 59, &[])?,
            hour: Field::parse(hour, 0, 23, &[])?,
            day: Field::parse(day, 1, 31, &[])?,
            month: Field::parse(month, 1, 12, &MONTHS)?,
            weekday: Field::parse(weekday, 0, 6, &WEEKDAYS)?,
        })))
    }

    /// The first time after that second; `None`: there is none.
    #[must_use]
    pub fn next(&self, after: i64, zone: &Zone) -> Option<i64> {
        match self {
            Self::Every(seconds) => after.checked_add(*seconds),
            Self::Line(line) => line.next(after, zone),
        }
    }

    /// The newest time after `earliest` that has come at `now`.
    #[must_use]
    pub fn missed(&self, earliest: i64, now: i64, zone: &Zone) -> Option<Missed> {
        let first = self.next(earliest, zone).filter(|first| *first <= now)?;
        let between = self.next(first, zone).map_or(i64::MAX, |second| second - first).max(1);
        let are_many = (now - first) / between >= 100;
        if let Self::Every(seconds) = self {
            return Some(Missed { last: now - (now - earliest) % seconds, are_many });
        }
        let mut last = first;
        // Going on from the beginning could take a million steps.
        for hours in [1, 24, 32 * 24, 366 * 24, 9 * 366 * 24] {
            let start = earliest.max(now - hours * 3_600);
            let times = std::iter::successors(self.next(start, zone), |time| self.next(*time, zone));
            if let Some(found) = times.take_while(|time| *time <= now).last() {
                last = found;
                break;
            }
        }
        Some(Missed { last, are_many })
    }
}

impl Field {
    fn parse(text: &str, min: u64, max: u64, names: &[&str]) -> Result<Self, String> {
        let mut field = Self { bits: 0, is_any: false };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let Self { bits, is_any } = Self::range(part, min, max, names)?;
            field.bits |= bits;
            field.is_any |= is_any;
        }
        Ok(field)
    }

    /// `5`, `1-5`, `*`, each perhaps with `/STEP`.
    fn range(text: &str, min: u64, max: u64, names: &[&str]) -> Result<Self, String> {
        let number = |word: &str| -> Result<u64, String> {
            let name = names.iter().position(|name| word.eq_ignore_ascii_case(name));
            match name.and_then(|at| u64::try_from(at).ok()) {
                Some(at) => Ok(min + at),
                None => word.parse().map_err(|_| match word.parse::<i64>() {
                    Ok(negative) => format!("negative number ({negative}) not allowed: {word}"),
                    Err(_) => format!(
                        "failed to parse int from {word}: strconv.Atoi: parsing {word:?}: invalid syntax"
                    ),
                }),
            }
        };
        let parts: Vec<&str> = text.split('/').collect();
        let ends: Vec<&str> = parts[0].split('-').collect();
        let is_any = matches!(ends[0], "*" | "?");
        let (start, mut end) = match ends[..] {
            [_] if is_any => (min, max),
            [one] => (number(one)?, number(one)?),
            [start, end] if !is_any => (number(start)?, number(end)?),
            _ => return Err(format!("too many hyphens: {text}")),
        };
        let step = match parts[..] {
            [_] => 1,
            [_, step] => {
                if ends.len() == 1 && !is_any {
                    end = max;
                }
                number(step)?
            }
            _ => return Err(format!("too many slashes: {text}")),
        };
        if start < min {
            return Err(format!("beginning of range ({start}) below minimum ({min}): {text}"));
        }
        if end > max {
            return Err(format!("end of range ({end}) above maximum ({max}): {text}"));
        }
        if start > end {
            return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
        }
        let Ok(step_by @ 1..) = usize::try_from(step) else {
            return Err(format!("step of range should be a positive number: {text}"));
        };
        let bits = (start..=end).step_by(step_by).fold(0, |bits, value| bits | 1 << value);
        Ok(Self { bits, is_any: is_any && step == 1 })
    }

    fn has(self, value: i64) -> bool {
        self.bits >> value & 1 == 1
    }
}

impl Line {
    fn next(&self, after: i64, zone: &Zone) -> Option<i64> {
        let limit = after.saturating_add(MAX_DAYS * DAY);
        let hourly = self.hour.bits == (1 << 24) - 1;
        let mut from = after + 1;
        while from < limit {
            let span = zone.span(from);
            let until = span.end.min(limit);
            if let Some(local) = self.next_local(from + span.offset, until.saturating_add(span.offset)) {
                let time = local - span.offset;
                // This time of day has been before the clocks were set back.
                let is_repeated = span.start.is_some_and(|start| local < start + span.offset_before);
                if is_repeated && !hourly {
                    from = time + 1;
                    continue;
                }
                return Some(time);
            }
            if span.end >= limit {
                return None;
            }
            let next = zone.span(span.end);
            let skipped = self.next_local(span.end + span.offset, span.end + next.offset);
            if skipped.is_some() && !hourly {
                return Some(span.end);
            }
            from = span.end;
        }
        None
    }

    /// The first minute from `from` and before `until` on a clock that is never changed.
    fn next_local(&self, from: i64, until: i64) -> Option<i64> {
        let mut day = from.div_euclid(DAY);
        let mut second = from.rem_euclid(DAY);
        while day.saturating_mul(DAY) < until {
            if self.has_day(day) {
                let found =
                    (second.div_euclid(3_600)..24).filter(|hour| self.hour.has(*hour)).find_map(|hour| {
                        let minutes = (0..60).filter(|minute| self.minute.has(*minute));
                        minutes.map(|minute| hour * 3_600 + minute * 60).find(|time| *time >= second)
                    });
                if let Some(time) = found {
                    return Some(day * DAY + time).filter(|time| *time < until);
                }
            }
            day += 1;
            second = 0;
        }
        None
    }

    fn has_day(&self, day: i64) -> bool {
        let (_, month, of_month) = zone::civil(day);
        let (day_fits, weekday_fits) = (self.day.has(of_month), self.weekday.has(zone::weekday(day)));
        let fits = if self.day.is_any || self.weekday.is_any {
            day_fits && weekday_fits
        } else {
            day_fits || weekday_fits
        };
        fits && self.month.has(month)
    }
}

#[cfg(test)]
mod tests;
