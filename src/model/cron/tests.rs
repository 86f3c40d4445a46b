use proptest::prelude::*;

use super::*;
use crate::model::types::Timestamp;

const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

fn seconds(time: &str) -> i64 {
    Timestamp::parse_rfc3339(time).unwrap().as_nanos() / 1_000_000_000
}

fn shown(seconds: i64) -> String {
    Timestamp::from_secs(seconds).to_rfc3339()
}

/// The times that follow, in UTC.
fn times(line: &str, zone: &Zone, after: &str, count: usize) -> Vec<String> {
    let schedule = Schedule::parse(line).unwrap();
    let first = schedule.next(seconds(after), zone);
    std::iter::successors(first, |time| schedule.next(*time, zone)).take(count).map(shown).collect()
}

#[test]
fn lines_name_the_times_that_upstreams_parser_does() {
    let utc = Zone::utc();
    for (line, after, expected) in [
        ("*/15 * * * *", "2026-11-20T16:00:00Z", "2026-11-20T16:15:00Z"),
        ("*/15 * * * *", "2026-11-20T16:14:59Z", "2026-11-20T16:15:00Z"),
        ("0 0 * * *", "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z"),
        ("5,20-25/2 3 * * *", "2026-11-20T03:05:00Z", "2026-11-20T03:20:00Z"),
        ("30 2 29 2 *", "2026-11-20T00:00:00Z", "2028-02-29T02:30:00Z"),
        ("0 12 * * MON-FRI", "2026-11-20T12:00:00Z", "2026-11-23T12:00:00Z"),
        ("0 12 * jan sun", "2026-11-20T12:00:00Z", "2027-01-03T12:00:00Z"),
        // Day of the month or of the week, when both are restricted.
        ("0 0 13 * 5", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z"),
        ("0 0 1 * 5", "2026-11-27T00:00:00Z", "2026-12-01T00:00:00Z"),
        ("0 0 1 * ?", "2026-11-27T00:00:00Z", "2026-12-01T00:00:00Z"),
        ("0 0 */2 * 1", "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z"),
        ("10/20 * * * *", "2026-11-20T00:10:00Z", "2026-11-20T00:30:00Z"),
        ("@hourly", "2026-11-20T00:10:00Z", "2026-11-20T01:00:00Z"),
        ("@weekly", "2026-11-20T00:10:00Z", "2026-11-22T00:00:00Z"),
        ("@monthly", "2026-11-20T00:10:00Z", "2026-12-01T00:00:00Z"),
        ("@yearly", "2026-11-20T00:10:00Z", "2027-01-01T00:00:00Z"),
        ("@every 1h30m", "2026-11-20T00:10:07Z", "2026-11-20T01:40:07Z"),
    ] {
        assert_eq!(times(line, &utc, after, 1), [expected], "{line}");
    }
    assert_eq!(times("0 0 30 2 *", &utc, "2026-01-01T00:00:00Z", 1), Vec::<String>::new());
}

#[test]
fn bad_lines_are_refused_in_upstreams_words() {
    for (line, words) in [
        ("", "empty spec string"),
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("* * * * * *", "expected exactly 5 fields, found 6: [* * * * * *]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ("@fortnightly", "unrecognized descriptor: @fortnightly"),
    ] {
        assert_eq!(Schedule::parse(line).unwrap_err(), words);
    }
    assert!(
        Schedule::parse("@every soon").unwrap_err().starts_with("failed to parse duration @every soon: ")
    );
}

#[test]
fn a_daily_time_that_comes_twice_counts_once() {
    let berlin = Zone::of_rule(BERLIN).unwrap();
    // Clocks go back from 3:00 to 2:00 on 25 October 2026, at 1:00 UTC.
    assert_eq!(
        times("30 2 * * *", &berlin, "2026-10-24T00:00:00Z", 3),
        ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    );
    assert_eq!(
        times("0 * * * *", &berlin, "2026-10-24T23:30:00Z", 4),
        ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"],
        "every hour that passes"
    );
    assert_eq!(times("0 2-4 * * *", &berlin, "2026-10-24T23:00:00Z", 3)[1], "2026-10-25T02:00:00Z");
}

#[test]
fn a_daily_time_that_is_left_out_counts_at_the_change() {
    let berlin = Zone::of_rule(BERLIN).unwrap();
    // Clocks go from 2:00 to 3:00 on 28 March 2027, at 1:00 UTC.
    assert_eq!(
        times("30 2 * * *", &berlin, "2027-03-27T00:00:00Z", 3),
        ["2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]
    );
    assert_eq!(
        times("0 3 * * *", &berlin, "2027-03-27T12:00:00Z", 2),
        ["2027-03-28T01:00:00Z", "2027-03-29T01:00:00Z"]
    );
    assert_eq!(
        times("15 * * * *", &berlin, "2027-03-28T00:00:00Z", 2),
        ["2027-03-28T00:15:00Z", "2027-03-28T01:15:00Z"]
    );
}

#[test]
fn rules_of_zones_read_as_posix_writes_them() {
    for (rule, at, offset) in [
        ("UTC0", "2026-07-01T00:00:00Z", 0),
        (BERLIN, "2026-07-01T00:00:00Z", 7_200),
        (BERLIN, "2026-12-01T00:00:00Z", 3_600),
        ("EST5EDT,M3.2.0,M11.1.0", "2026-07-01T00:00:00Z", -14_400),
        ("EST5EDT,M3.2.0,M11.1.0", "2026-12-01T00:00:00Z", -18_000),
        // The south: summer is at the turn of the year.
        ("AEST-10AEDT,M10.1.0,M4.1.0/3", "2026-12-31T12:00:00Z", 39_600),
        ("AEST-10AEDT,M10.1.0,M4.1.0/3", "2026-07-01T00:00:00Z", 36_000),
        ("<+0330>-3:30", "2026-07-01T00:00:00Z", 12_600),
        ("<-02>2<-01>,M3.5.0/-1,M10.5.0/0", "2026-07-01T00:00:00Z", -3_600),
        ("XXX-2<+03>-3,J60/0,300/0", "2026-07-01T00:00:00Z", 10_800),
    ] {
        let zone = Zone::of_rule(rule).unwrap_or_else(|| panic!("{rule}"));
        assert_eq!(zone.offset(seconds(at)), offset, "{rule} {at}");
    }
    for bad in ["", "C", "CET", "CET-1CEST", "CET-1CEST,M3.5.0", "CET-1CEST,M13.5.0,M10.5.0", "CET-999"] {
        assert_eq!(Zone::of_rule(bad), None, "{bad}");
    }
}

/// A file as the compiler of the time zone database writes them: the table is empty, or a part of it.
fn tzif(changes: &[(i64, u8)], offsets: &[i32], footer: &str) -> Vec<u8> {
    let header = |changes: usize, types: usize| {
        let mut bytes = b"TZif2".to_vec();
        bytes.extend([0; 15]);
        for count in [0, 0, 0, changes, types, 4] {
            bytes.extend(u32::try_from(count).unwrap().to_be_bytes());
        }
        bytes
    };
    let types: Vec<u8> =
        offsets.iter().flat_map(|offset| [&offset.to_be_bytes()[..], &[0, 0]].concat()).collect();
    let mut bytes = header(0, 1);
    bytes.extend([0; 10]);
    bytes.extend(header(changes.len(), offsets.len()));
    bytes.extend(changes.iter().flat_map(|(at, _)| at.to_be_bytes()));
    bytes.extend(changes.iter().map(|(_, kind)| *kind));
    bytes.extend(types);
    bytes.extend(b"LMT\0");
    bytes.extend(format!("\n{footer}\n").into_bytes());
    bytes
}

#[test]
fn files_of_the_database_are_read_with_table_and_rule() {
    let summer = seconds("2026-03-29T01:00:00Z");
    let bytes = tzif(&[(seconds("1945-05-24T00:00:00Z"), 1), (summer, 2)], &[3_208, 3_600, 7_200], BERLIN);
    let zone = Zone::parse(&bytes).unwrap();
    for (at, offset) in [
        ("2026-03-29T00:59:59Z", 3_600),
        ("2026-03-29T01:00:00Z", 7_200),
        ("2026-10-25T00:59:59Z", 7_200),
        ("2026-10-25T01:00:00Z", 3_600),
        ("2037-07-01T00:00:00Z", 7_200),
    ] {
        assert_eq!(zone.offset(seconds(at)), offset, "{at}");
    }
    for end in 0..bytes.len() {
        assert_eq!(Zone::parse(&bytes[..end]), None, "cut at {end}");
    }
    assert_eq!(Zone::parse(b"not a zone"), None);
    let of_host = std::fs::read("/usr/share/zoneinfo/Europe/Berlin").ok();
    if let Some(zone) = of_host.map(|bytes| Zone::parse(&bytes).unwrap()) {
        assert_eq!(zone.offset(seconds("2026-07-01T00:00:00Z")), 7_200);
        assert_eq!(zone.offset(seconds("2026-12-01T00:00:00Z")), 3_600);
    }
}

#[test]
fn the_newest_missed_time_is_found_at_once() {
    let utc = Zone::utc();
    let missed = |line: &str, earliest: &str, now: &str| {
        let schedule = Schedule::parse(line).unwrap();
        let found = schedule.missed(seconds(earliest), seconds(now), &utc)?;
        Some((shown(found.last), found.are_many))
    };
    let some = |last: &str, are_many| Some((last.to_owned(), are_many));
    let (early, now) = ("2026-11-20T00:00:00Z", "2026-11-20T16:00:30Z");
    assert_eq!(missed("0 * * * *", early, now), some("2026-11-20T16:00:00Z", false));
    assert_eq!(missed("0 17 * * *", early, now), None);
    assert_eq!(missed("* * * * *", "1970-01-01T00:00:00Z", now), some("2026-11-20T16:00:00Z", true));
    assert_eq!(missed("0 0 1 1 *", "1970-01-01T00:00:00Z", now), some("2026-01-01T00:00:00Z", false));
    assert_eq!(missed("0 0 29 2 *", "1970-01-01T00:00:00Z", now), some("2024-02-29T00:00:00Z", false));
    assert_eq!(
        missed("@every 7m", "2026-11-20T16:00:00Z", "2026-11-20T16:20:00Z"),
        some("2026-11-20T16:14:00Z", false)
    );
    assert_eq!(missed("@every 7m", "2026-11-20T16:00:00Z", "2026-11-20T16:06:59Z"), None);
}

proptest! {
    /// Every line of a few shapes: the next time is after, on a whole minute, and nothing is between.
    #[test]
    fn the_next_time_is_the_first_that_fits(
        minute in 0_i64..60,
        hour in proptest::option::of(0_i64..24),
        day in proptest::option::of(1_i64..29),
        after in 1_700_000_000_i64..1_800_000_000,
    ) {
        let part = |value: Option<i64>| value.map_or("*".to_owned(), |value| value.to_string());
        let line = format!("{minute} {} {} * *", part(hour), part(day));
        let schedule = Schedule::parse(&line).unwrap();
        let next = schedule.next(after, &Zone::utc()).unwrap();
        prop_assert!(next > after && next % 60 == 0);
        let fits = |time: i64| {
            let (_, _, of_month) = zone::civil(time.div_euclid(DAY));
            time.rem_euclid(3_600) / 60 == minute
                && hour.is_none_or(|hour| time.rem_euclid(DAY) / 3_600 == hour)
                && day.is_none_or(|day| of_month == day)
        };
        prop_assert!(fits(next));
        let first = after - after.rem_euclid(60) + 60;
        prop_assert!((first..next).step_by(60).all(|time| !fits(time)));
    }

    /// Whatever the zone's rule: times only go forward, and none is named twice.
    #[test]
    fn times_go_forward_through_changes_of_clocks(
        minute in 0_u32..60,
        hours in "[0-9]|1[0-9]|2[0-3]|\\*|\\*/2|1-3",
        after in 1_760_000_000_i64..1_800_000_000,
    ) {
        let berlin = Zone::of_rule(BERLIN).unwrap();
        let schedule = Schedule::parse(&format!("{minute} {hours} * * *")).unwrap();
        let mut last = after;
        for _ in 0..30 {
            let next = schedule.next(last, &berlin).unwrap();
            prop_assert!(next > last && next - last <= 26 * 3_600);
            last = next;
        }
    }
}
