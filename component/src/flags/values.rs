//! The values of the flags, by name.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::table::{Flag, position};
use super::value::Value;

/// The value of every flag by name, whether it has an effect or not.
///
/// The getters take the literal name of a flag in the table, without dashes. They panic if there is no such flag, or if
/// it has another type: this is a defect of the program, not of the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// The flags of the binary.
    pub(super) flags: &'static [Flag],
    /// The value of each flag.
    pub(super) values: Vec<Value>,
    /// True for each flag that was on the command line.
    pub(super) set: Vec<bool>,
}

impl Values {
    /// Returns the given values, and the defaults of flags that were not given.
    pub(super) fn of(flags: &'static [Flag], given: &[Option<Value>]) -> Values {
        let value = |(flag, given): (&Flag, &Option<Value>)| {
            let default = || flag.kind.default(flag.default);
            let value = given.clone().or_else(default);
            value.unwrap_or_else(|| panic!("the default of --{} is not of its type", flag.name))
        };
        Values {
            flags,
            values: flags.iter().zip(given).map(value).collect(),
            set: given.iter().map(Option::is_some).collect(),
        }
    }

    /// Returns the flags of the binary.
    pub fn flags(&self) -> &'static [Flag] {
        self.flags
    }

    /// Returns true if the binary has a flag with this name; needed only for flags that not every binary has.
    pub fn has(&self, name: &str) -> bool {
        position(self.flags, name).is_some()
    }

    fn index(&self, name: &str) -> usize {
        position(self.flags, name).unwrap_or_else(|| panic!("there is no flag --{name}"))
    }

    fn value(&self, name: &str) -> &Value {
        &self.values[self.index(name)]
    }

    /// Returns true if the flag was on the command line, even with its default value.
    pub fn is_set(&self, name: &str) -> bool {
        self.set[self.index(name)]
    }

    /// Returns the value of a flag of type Text, Version or Quantity, as written.
    pub fn get_str(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(text) => text,
            other => wrong_type(name, other),
        }
    }

    /// Returns the value of a flag of type Bool.
    pub fn get_bool(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(on) => *on,
            other => wrong_type(name, other),
        }
    }

    /// Returns a whole number.
    pub fn get_i64(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(number) => *number,
            other => wrong_type(name, other),
        }
    }

    /// Returns a 32-bit whole number.
    pub fn get_i32(&self, name: &str) -> i32 {
        let number = self.get_i64(name);
        i32::try_from(number).unwrap_or_else(|_| wrong_type(name, &Value::Int(number)))
    }

    /// Returns a number.
    pub fn get_f64(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Float(number) => *number,
            other => wrong_type(name, other),
        }
    }

    /// Returns a duration; zero for a negative one, because upstream's timers treat both alike.
    pub fn get_duration(&self, name: &str) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos(name)).unwrap_or(0))
    }

    /// Returns a duration in nanoseconds, which may be negative.
    pub fn nanos(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Nanos(nanos) => *nanos,
            other => wrong_type(name, other),
        }
    }

    /// Returns a list of texts.
    pub fn get_strings(&self, name: &str) -> &[String] {
        match self.value(name) {
            Value::Strings(items) => items,
            other => wrong_type(name, other),
        }
    }

    /// Returns a list of whole numbers.
    pub fn get_int32s(&self, name: &str) -> &[i32] {
        match self.value(name) {
            Value::Int32s(items) => items,
            other => wrong_type(name, other),
        }
    }

    /// Returns a map of texts.
    pub fn get_map(&self, name: &str) -> &BTreeMap<String, String> {
        match self.value(name) {
            Value::Map(map) => map,
            other => wrong_type(name, other),
        }
    }

    /// Returns an IP address.
    pub fn get_ip(&self, name: &str) -> IpAddr {
        match self.value(name) {
            Value::Ip(address) => *address,
            other => wrong_type(name, other),
        }
    }

    /// Returns patterns of source files with their verbosity.
    pub fn get_vmodule(&self, name: &str) -> &[(String, u32)] {
        match self.value(name) {
            Value::VModule(patterns) => patterns,
            other => wrong_type(name, other),
        }
    }
}

fn wrong_type(name: &str, value: &Value) -> ! {
    panic!("--{name} is read as a type that it does not have: it is {value:?}")
}
