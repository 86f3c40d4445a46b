//! Time zones: the files of the time zone database (`TZif`, RFC 9636), and the rules at their ends (POSIX `TZ`).
//!
//! Owns both formats.

use super::DAY;
use crate::model::ordered::Sortable as _;

/// Older changes of clocks do not matter to schedules: 1 January 2020.
const OLDEST: i64 = 1_577_836_800;
/// No file of the database is so long.
const MAX_BYTES: usize = 1 << 20;

/// When a zone's clocks show what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Seconds east of Greenwich before the first change.
    first: i64,
    /// Seconds since the epoch, and the offset from then on.
    changes: Vec<(i64, i64)>,
    /// From the last change on.
    rule: Option<Rule>,
}

/// A time during which the clocks are not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// `None`: the beginning of time.
    pub start: Option<i64>,
    pub end: i64,
    pub offset: i64,
    /// Before the start.
    pub offset_before: i64,
}

/// Standard time, and summer time if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    standard: i64,
    summer: Option<Summer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Summer {
    offset: i64,
    from: YearDay,
    to: YearDay,
}

/// A day of the year, and the second of that day at which clocks change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct YearDay {
    day: DayForm,
    second: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DayForm {
    /// `Mm.w.d`: month, week (5: the last), day of the week.
    Week(i64, i64, i64),
    /// `Jn`: from 1, without 29 February.
    Julian(i64),
    /// `n`: from 0, with it.
    Ordinal(i64),
}

impl Zone {
    #[must_use]
    pub fn utc() -> Self {
        Self { first: 0, changes: Vec::new(), rule: None }
    }

    /// Reads a file of the time zone database.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_BYTES {
            return None;
        }
        let (version, counts) = header(bytes)?;
        if version < b'2' {
            return body(&bytes[HEADER..], counts, 4).map(|(zone, _)| zone);
        }
        let second = bytes.get(HEADER + length(counts, 4)..)?;
        let (_, counts) = header(second)?;
        let (mut zone, rest) = body(&second[HEADER..], counts, 8)?;
        let footer = rest.strip_prefix(b"\n")?;
        let end = footer.iter().position(|byte| *byte == b'\n')?;
        let footer = std::str::from_utf8(&footer[..end]).ok()?;
        if !footer.is_empty() {
            zone.rule = Some(Rule::parse(footer)?);
        }
        Some(zone)
    }

    /// A zone by its POSIX rule, for example `CET-1CEST,M3.5.0,M10.5.0/3`.
    #[must_use]
    pub fn of_rule(text: &str) -> Option<Self> {
        let rule = Rule::parse(text)?;
        Some(Self { first: rule.standard, changes: Vec::new(), rule: Some(rule) })
    }

    /// What the clocks show at this second, seconds east of Greenwich.
    #[must_use]
    pub fn offset(&self, at: i64) -> i64 {
        self.span(at).offset
    }

    /// The span with this second.
    pub(super) fn span(&self, at: i64) -> Span {
        let position = self.changes.partition_point(|change| change.0 <= at);
        let before = |position: usize| match position {
            0 => self.first,
            position => self.changes[position - 1].1,
        };
        let start = position.checked_sub(1).map(|last| self.changes[last].0);
        let offset_before = position.checked_sub(1).map_or(self.first, before);
        match (self.changes.get(position), &self.rule) {
            (None, Some(rule)) => rule.span(at, (start, before(position), offset_before)),
            (next, _) => Span {
                start,
                end: next.map_or(i64::MAX, |next| next.0),
                offset: before(position),
                offset_before,
            },
        }
    }
}

const HEADER: usize = 44;

/// Version, and the six numbers of the header.
fn header(bytes: &[u8]) -> Option<(u8, [usize; 6])> {
    let header = bytes.get(..HEADER)?;
    if !header.starts_with(b"TZif") {
        return None;
    }
    let number = |at: usize| {
        let word = header[20 + at * 4..24 + at * 4].try_into().ok()?;
        usize::try_from(u32::from_be_bytes(word)).ok().filter(|number| *number <= MAX_BYTES)
    };
    Some((header[4], [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?, number(5)?]))
}

/// The length of the data behind a header: counts of UT indicators, standard indicators, leap seconds, changes, types
/// and characters.
fn length([ut, standard, leap, changes, types, chars]: [usize; 6], size: usize) -> usize {
    changes * size + changes + types * 6 + chars + leap * (size + 4) + standard + ut
}

fn body(bytes: &[u8], counts: [usize; 6], size: usize) -> Option<(Zone, &[u8])> {
    let [_, _, _, changes, types, _] = counts;
    let whole = length(counts, size);
    let data = bytes.get(..whole)?;
    let (times, rest) = data.split_at(changes * size);
    let (kinds, rest) = rest.split_at(changes);
    let offset = |kind: usize| {
        let entry = rest.get(kind * 6..kind * 6 + 4).filter(|_| kind < types)?;
        Some(i64::from(i32::from_be_bytes(entry.try_into().ok()?)))
    };
    let mut zone = Zone { first: offset(0)?, ..Zone::utc() };
    for (time, kind) in times.chunks_exact(size).zip(kinds) {
        let at = match time.try_into() {
            Ok(long) => i64::from_be_bytes(long),
            Err(_) => i64::from(i32::from_be_bytes(time.try_into().ok()?)),
        };
        let offset = offset(usize::from(*kind))?;
        if at < OLDEST {
            zone.first = offset;
        } else {
            zone.changes.push((at, offset));
        }
    }
    Some((zone, &bytes[whole..]))
}

impl Rule {
    fn parse(text: &str) -> Option<Self> {
        let rest = skip_name(text)?;
        let (west, rest) = clock(rest)?;
        if rest.is_empty() {
            return Some(Self { standard: -west, summer: None });
        }
        let rest = skip_name(rest)?;
        let (summer_west, rest) = if rest.starts_with(',') { (west - 3_600, rest) } else { clock(rest)? };
        let (from, to) = rest.strip_prefix(',')?.split_once(',')?;
        let summer = Summer { offset: -summer_west, from: YearDay::parse(from)?, to: YearDay::parse(to)? };
        Some(Self { standard: -west, summer: Some(summer) })
    }

    /// The span with `at`, which is after the last change of the table: its time, and the offsets around it.
    fn span(&self, at: i64, (start, offset, before): (Option<i64>, i64, i64)) -> Span {
        let Some(summer) = &self.summer else {
            let offset = if start.is_some() { offset } else { self.standard };
            return Span { start, end: i64::MAX, offset, offset_before: before };
        };
        let (year, _, _) = civil(at.div_euclid(DAY));
        let mut changes = Vec::new();
        for year in year - 1..=year + 1 {
            changes.push((summer.from.at(year) - self.standard, summer.offset));
            changes.push((summer.to.at(year) - summer.offset, self.standard));
        }
        changes.order_by(Ord::cmp);
        let position = changes.partition_point(|change| change.0 <= at);
        let (Some(last), Some(next)) = (position.checked_sub(1), changes.get(position)) else {
            return Span { start, end: i64::MAX, offset, offset_before: before };
        };
        // The table may end with a change of its own.
        if start.is_some_and(|start| start >= changes[last].0) {
            return Span { start, end: next.0, offset, offset_before: before };
        }
        let offset_before = if changes[last].1 == self.standard { summer.offset } else { self.standard };
        Span { start: Some(changes[last].0), end: next.0, offset: changes[last].1, offset_before }
    }
}

/// A name is letters, or anything in angle brackets.
fn skip_name(text: &str) -> Option<&str> {
    if let Some(quoted) = text.strip_prefix('<') {
        return quoted.split_once('>').map(|(_, rest)| rest);
    }
    let rest = text.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    (rest.len() + 3 <= text.len()).then_some(rest)
}

/// `[+-]hh[:mm[:ss]]` in seconds, and what follows.
fn clock(text: &str) -> Option<(i64, &str)> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let end =
        unsigned.find(|letter: char| !letter.is_ascii_digit() && letter != ':').unwrap_or(unsigned.len());
    let (digits, rest) = unsigned.split_at(end);
    let mut seconds = 0;
    for (part, unit) in digits.split(':').zip([3_600, 60, 1]) {
        seconds += part.parse::<i64>().ok().filter(|part| *part <= 167)? * unit;
    }
    Some((sign * seconds, rest))
}

impl YearDay {
    fn parse(text: &str) -> Option<Self> {
        let (day, time) = text.split_once('/').map_or((text, None), |(day, time)| (day, Some(time)));
        let second = match time {
            None => 2 * 3_600,
            Some(time) => clock(time).filter(|(_, rest)| rest.is_empty())?.0,
        };
        let number =
            |text: &str, most: i64| text.parse::<i64>().ok().filter(|number| (0..=most).contains(number));
        let day = if let Some(week) = day.strip_prefix('M') {
            let mut parts = week.split('.');
            let mut part = |most| number(parts.next()?, most);
            DayForm::Week(part(12).filter(|month| *month > 0)?, part(5).filter(|week| *week > 0)?, part(6)?)
        } else if let Some(julian) = day.strip_prefix('J') {
            DayForm::Julian(number(julian, 365).filter(|day| *day > 0)?)
        } else {
            DayForm::Ordinal(number(day, 365)?)
        };
        Some(Self { day, second })
    }

    /// In seconds of the local clock.
    fn at(&self, year: i64) -> i64 {
        let first = days(year, 1, 1);
        let day = match self.day {
            DayForm::Week(month, week, wanted) => {
                let first = days(year, month, 1);
                let next = if month == 12 { days(year + 1, 1, 1) } else { days(year, month + 1, 1) };
                let day = first + (wanted - weekday(first)).rem_euclid(7) + (week - 1) * 7;
                if day >= next { day - 7 } else { day }
            }
            DayForm::Julian(day) => {
                let is_leap = days(year, 3, 1) - days(year, 2, 1) == 29;
                first + day - 1 + i64::from(is_leap && day > 59)
            }
            DayForm::Ordinal(day) => first + day,
        };
        day * DAY + self.second
    }
}

/// Days since the epoch of a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March: the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of a number of days since the epoch.
pub(super) fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// 0 is Sunday.
pub(super) fn weekday(days: i64) -> i64 {
    (days + 4).rem_euclid(7)
}
