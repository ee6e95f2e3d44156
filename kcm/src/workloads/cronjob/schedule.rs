//! Cron schedules in upstream's syntax (robfig/cron v3, ParseStandard), and their next times.
//!
//! A schedule other than `@every` is compared with the local time of its zone. An hour that is skipped in spring has no
//! runs, an hour that occurs twice in autumn has its runs twice. This is upstream's behaviour; the tests compare with a
//! table that upstream's library generated.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::flags::value::parse_duration;

/// Years without a due time after which a schedule counts as never due, for example one for the 31st of February.
const YEARS: i16 = 5;

const SECOND: SignedDuration = SignedDuration::from_secs(1);
const MINUTE: SignedDuration = SignedDuration::from_mins(1);
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// The reason why a schedule cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The text is empty.
    #[error("empty spec string")]
    Empty,
    /// There are not five fields.
    #[error("expected exactly 5 fields, found {}: [{}]", .0.len(), .0.join(" "))]
    Fields(Vec<String>),
    /// A value or a step is not a number.
    #[error("failed to parse int from {0}: not a whole number")]
    Number(String),
    /// A number is below zero.
    #[error("negative number ({0}) not allowed: {0}")]
    Negative(String),
    /// A range has more than two ends.
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    /// A range has more than one step.
    #[error("too many slashes: {0}")]
    Slashes(String),
    /// A range begins too low.
    #[error("beginning of range ({0}) below minimum ({1}): {2}")]
    TooLow(u64, u64, String),
    /// A range ends too high.
    #[error("end of range ({0}) above maximum ({1}): {2}")]
    TooHigh(u64, u64, String),
    /// A range ends before it begins.
    #[error("beginning of range ({0}) beyond end of range ({1}): {2}")]
    Backwards(u64, u64, String),
    /// The step of a range is zero.
    #[error("step of range should be a positive number: {0}")]
    NoStep(String),
    /// An unknown word after `@`.
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    /// `@every` without a valid duration.
    #[error("failed to parse duration {0}: time: invalid duration")]
    Duration(String),
    /// An unknown zone before the schedule.
    #[error("provided bad location {0}: unknown time zone {0}")]
    Zone(String),
}

/// The values of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// The field contains `*` or `?` without a step above 1. If this is true for one of the two fields for days, only
    /// the other one determines the days.
    any: bool,
}

impl Field {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits >> value & 1 == 1)
    }
}

/// The allowed values of a field.
struct Bounds {
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { low: 0, high: 59, names: &[] };
const HOURS: Bounds = Bounds { low: 0, high: 23, names: &[] };
const DAYS: Bounds = Bounds { low: 1, high: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds = Bounds { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// A schedule.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    /// By calendar and local time of a zone.
    Wall(Box<Wall>),
    /// At a constant interval in whole seconds.
    Every(SignedDuration),
}

/// A schedule by calendar and local time.
#[derive(Debug, Clone, PartialEq)]
pub struct Wall {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
    zone: TimeZone,
}

/// Returns a zone by its name, as Go's LoadLocation does: empty is UTC, `Local` is this process's zone.
pub fn zone(name: &str) -> Option<TimeZone> {
    match name {
        "" | "UTC" => Some(TimeZone::UTC),
        "Local" => Some(TimeZone::system()),
        name if name.contains("..") || name.starts_with(['/', '\\']) => None,
        name => TimeZone::get(name).ok(),
    }
}

impl Schedule {
    /// Parses a schedule in the zone `local`, unless it begins with a zone (`TZ=` or `CRON_TZ=`).
    pub fn parse(text: &str, local: TimeZone) -> Result<Self, ScheduleError> {
        if text.is_empty() {
            return Err(ScheduleError::Empty);
        }
        let (mut text, mut zone_here) = (text, local);
        if let Some(rest) = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) {
            let (name, schedule) = rest.split_once(' ').ok_or_else(|| ScheduleError::Zone(rest.to_owned()))?;
            zone_here = zone(name).ok_or_else(|| ScheduleError::Zone(name.to_owned()))?;
            text = schedule.trim();
        }
        if text.starts_with('@') {
            return descriptor(text, zone_here);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(ScheduleError::Fields(fields.into_iter().map(str::to_owned).collect()));
        };
        Ok(Self::Wall(Box::new(Wall {
            minute: field(minute, &MINUTES)?,
            hour: field(hour, &HOURS)?,
            day: field(day, &DAYS)?,
            month: field(month, &MONTHS)?,
            weekday: field(weekday, &WEEKDAYS)?,
            zone: zone_here,
        })))
    }

    /// Returns the first due time later than `after`; `None` if there is none within five years.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let whole = Timestamp::from_second(after.as_second()).unwrap_or(after);
        match self {
            Self::Every(distance) => whole.checked_add(*distance).ok(),
            Self::Wall(wall) => wall.next(whole.checked_add(SECOND).ok()?),
        }
    }
}

fn descriptor(text: &str, zone: TimeZone) -> Result<Schedule, ScheduleError> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        other => {
            let distance = other.strip_prefix("@every ").ok_or_else(|| ScheduleError::Descriptor(other.to_owned()))?;
            let nanos = parse_duration(distance).ok_or_else(|| ScheduleError::Duration(other.to_owned()))?;
            return Ok(Schedule::Every(SignedDuration::from_secs((nanos / 1_000_000_000).max(1))));
        }
    };
    Schedule::parse(fields, zone)
}

fn field(text: &str, bounds: &Bounds) -> Result<Field, ScheduleError> {
    let mut field = Field { bits: 0, any: false };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let range = range(part, bounds)?;
        field.bits |= range.bits;
        field.any |= range.any;
    }
    Ok(field)
}

fn range(text: &str, bounds: &Bounds) -> Result<Field, ScheduleError> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let star = matches!(ends[0], "*" | "?");
    let (low, mut high) = match ends[..] {
        _ if star => (bounds.low, bounds.high),
        [one] => (value(one, bounds)?, value(one, bounds)?),
        [low, high] => (value(low, bounds)?, value(high, bounds)?),
        _ => {
            value(ends[0], bounds)?;
            return Err(ScheduleError::Hyphens(text.to_owned()));
        }
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if ends.len() == 1 {
                high = bounds.high;
            }
            step
        }
        _ => return Err(ScheduleError::Slashes(text.to_owned())),
    };
    let text = || text.to_owned();
    if low < bounds.low {
        return Err(ScheduleError::TooLow(low, bounds.low, text()));
    }
    if high > bounds.high {
        return Err(ScheduleError::TooHigh(high, bounds.high, text()));
    }
    if low > high {
        return Err(ScheduleError::Backwards(low, high, text()));
    }
    if step == 0 {
        return Err(ScheduleError::NoStep(text()));
    }
    let step_by = usize::try_from(step).unwrap_or(usize::MAX);
    let bits = (low..=high).step_by(step_by).fold(0, |bits, value| bits | 1 << value);
    Ok(Field { bits, any: star && step <= 1 })
}

fn value(text: &str, bounds: &Bounds) -> Result<u64, ScheduleError> {
    let name = text.to_ascii_lowercase();
    match bounds.names.iter().position(|known| *known == name) {
        Some(at) => Ok(bounds.low + at as u64),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, ScheduleError> {
    let number: i64 = text.parse().map_err(|_| ScheduleError::Number(text.to_owned()))?;
    u64::try_from(number).map_err(|_| ScheduleError::Negative(text.to_owned()))
}

/// Returns the instant of this local time in a zone. If the local time is skipped or occurs twice, the result is that
/// of Go's time.Date.
fn moment(zone: &TimeZone, wall: DateTime) -> Option<Timestamp> {
    let as_utc = TimeZone::UTC.to_timestamp(wall).ok()?;
    let before = |offset: jiff::tz::Offset| as_utc.checked_sub(SignedDuration::from_secs(offset.seconds().into())).ok();
    let guess = zone.to_offset(as_utc);
    if guess.seconds() == 0 { Some(as_utc) } else { before(zone.to_offset(before(guess)?)) }
}

impl Wall {
    fn day_fits(&self, date: Date) -> bool {
        let day = self.day.has(date.day());
        let weekday = self.weekday.has(date.weekday().to_sunday_zero_offset());
        if self.day.any || self.weekday.any { day && weekday } else { day || weekday }
    }

    fn at(&self, moment: Timestamp) -> DateTime {
        self.zone.to_datetime(moment)
    }

    /// Returns the first moment of the schedule that is not before `from`, a whole second. Searches for the month, then
    /// for the day, hour, minute and second. When one of them overflows, the search starts again with the month. The
    /// first advance of a unit sets all smaller units to zero.
    fn next(&self, from: Timestamp) -> Option<Timestamp> {
        let last_year = self.at(from).year() + YEARS;
        let mut now = from;
        let mut stepped = false;
        loop {
            let wall = self.at(now);
            if wall.year() > last_year {
                return None;
            }
            let truncated = |wall| if stepped { Some(now) } else { moment(&self.zone, wall) };
            let next = if !self.month.has(wall.month()) {
                let start = self.at(truncated(wall.date().first_of_month().at(0, 0, 0, 0))?);
                let month = start.date().first_of_month().last_of_month().tomorrow().ok()?;
                let day = i64::from(start.day()) - 1;
                let date = month.checked_add(SignedDuration::from_hours(24 * day)).ok()?;
                moment(&self.zone, date.to_datetime(start.time()))?
            } else if !self.day_fits(wall.date()) {
                let start = self.at(truncated(wall.date().at(0, 0, 0, 0))?);
                let day = moment(&self.zone, start.date().tomorrow().ok()?.to_datetime(start.time()))?;
                // In a zone that skips midnight, the result is off by the skipped time.
                match self.at(day).hour() {
                    0 => day,
                    hour if hour > 12 => day.checked_add(HOUR * (24 - i32::from(hour))).ok()?,
                    hour => day.checked_sub(HOUR * i32::from(hour)).ok()?,
                }
            } else if !self.hour.has(wall.hour()) {
                truncated(wall.date().at(wall.hour(), 0, 0, 0))?.checked_add(HOUR).ok()?
            } else if !self.minute.has(wall.minute()) {
                let seconds = if stepped { 0 } else { now.as_second().rem_euclid(60) };
                now.checked_sub(SECOND * i32::try_from(seconds).ok()?).ok()?.checked_add(MINUTE).ok()?
            } else if wall.second() != 0 {
                now.checked_add(SECOND).ok()?
            } else {
                return Some(now);
            };
            // In a zone that skips a whole day, the search would return to the previous day forever.
            now = if next > now || !stepped { next } else { now.checked_add(HOUR * 24).ok()? };
            stepped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generated with upstream's library. The columns of a row are separated by tabs: either `next`, zone, schedule, a
    /// time, and the next three due times; or `parse`, a schedule as a Go string, and `ok` or the error.
    const TABLE: &str = include_str!("schedule_table.tsv");

    #[test]
    fn due_times_equal_those_of_upstream() {
        let mut seen = 0;
        for line in TABLE.lines().filter_map(|line| line.strip_prefix("next\t")) {
            let parts: Vec<&str> = line.split('\t').collect();
            let [zone_name, text, from, due @ ..] = &parts[..] else { panic!("{line}") };
            let schedule = Schedule::parse(text, zone(zone_name).expect("a zone")).expect("a schedule");
            let mut now = Timestamp::from_second(from.parse().expect("a number")).expect("in range");
            for expected in due {
                let next = schedule.next(now);
                let shown = next.map_or("never".to_owned(), |next| next.as_second().to_string());
                assert_eq!(shown, *expected, "{text} in {zone_name} after {now}");
                now = next.unwrap_or(now);
            }
            seen += 1;
        }
        assert!(seen > 1000, "the table has only {seen} lines");
    }

    #[test]
    fn texts_are_parsed_and_refused_as_in_upstream() {
        let mut seen = 0;
        for line in TABLE.lines().filter_map(|line| line.strip_prefix("parse\t")) {
            let (text, expected) = line.split_once('\t').expect("two parts");
            let text: String = serde_json::from_str(text).expect("a Go string that is a JSON string too");
            let read = Schedule::parse(&text, TimeZone::UTC);
            assert_eq!(read.is_ok(), expected == "ok", "{text:?}: {expected}: {read:?}");
            // Errors about numbers and durations end with texts of Go's standard library, which differ here.
            if let (Err(error), false) = (&read, expected.contains("failed to parse")) {
                assert_eq!(error.to_string(), expected, "{text:?}");
            }
            seen += 1;
        }
        assert!(seen > 40, "the table has only {seen} lines");
    }

    #[test]
    fn skipped_day_does_not_block_the_search() {
        // Samoa had no 30th of December 2011; upstream's library searches forever from here.
        let schedule = Schedule::parse("0 12 * * 6", zone("Pacific/Apia").expect("a zone")).expect("a schedule");
        let eve: Timestamp = "2011-12-29T20:00:00Z".parse().expect("a time");
        assert_eq!(schedule.next(eve), Some("2011-12-30T22:00:00Z".parse().expect("a time")));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "[-0-9*?/,@a-zA-Z= ]{0,24}\
                |(TZ=[A-Z][a-z]{2,6}(/[A-Z][a-z]{3,7})? )?([*?]|[0-9]{1,2})(-[0-9]{1,2})?(/[0-9]{1,3})?( [*?]| [0-9,]{1,5}){3} [a-z*0-6]{1,3}\
                |@every -?[0-9]{1,20}(ns|us|ms|s|m|h)|@[a-z]{4,9}",
            seconds in 0_i64..4_000_000_000,
        ) {
            if let Ok(schedule) = Schedule::parse(&text, TimeZone::UTC) {
                let now = Timestamp::from_second(seconds).expect("a time");
                proptest::prop_assert!(schedule.next(now).is_none_or(|next| next > now));
            }
        }
    }
}
