//! Durations for users, in kubectl's format.
//!
//! Owns rounding.

use crate::model::types::Timestamp;

/// `5s`, `3m20s`, `4h`, `2d3h`: the longer, the coarser, as kubectl prints ages.
#[must_use]
pub(crate) fn since(moment: Timestamp, now: Timestamp) -> String {
    human(now.saturating_since(moment).as_secs())
}

/// `<unknown>` without a start.
#[must_use]
pub(crate) fn since_or_unknown(moment: Option<Timestamp>, now: Timestamp) -> String {
    match moment {
        Some(moment) if !moment.is_zero() => since(moment, now),
        _ => "<unknown>".to_owned(),
    }
}

fn human(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: u64, large_unit: char, small: u64, small_unit: char| match small {
        0 => format!("{large}{large_unit}"),
        small => format!("{large}{large_unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, 'd', hours % 24, 'h'),
        _ if years < 2 => format!("{days}d"),
        _ if years < 8 => two(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectls() {
        const HOUR: u64 = 3600;
        const DAY: u64 = 24 * HOUR;
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (330, "5m30s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (4 * HOUR + 1800, "4h30m"),
            (8 * HOUR, "8h"),
            (47 * HOUR, "47h"),
            (48 * HOUR, "2d"),
            (3 * DAY + 5 * HOUR, "3d5h"),
            (8 * DAY, "8d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (3 * 365 * DAY + 10 * DAY, "3y10d"),
            (9 * 365 * DAY, "9y"),
        ] {
            assert_eq!(human(seconds), text, "{seconds} s");
        }
    }
}
