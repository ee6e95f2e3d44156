//! Parsing of a command line by pflag's rules; continues after errors, so that all of them are reported together.

use super::component::Component;
use super::flag_error::FlagError;
use super::nearest::nearest;
use super::table::Flag;
use super::value::Value;

/// A parsed command line, before any rules are checked.
#[derive(Clone, Debug)]
pub struct Parsed {
    component: &'static Component,
    /// The values of the given flags, by index in the table.
    pub values: Vec<Option<Value>>,
    /// All errors, in order.
    pub errors: Vec<FlagError>,
    /// The flags whose values are missing or refused.
    pub refused: Vec<&'static str>,
}

/// Parses `arguments` of a binary (without the program's name): the last occurrence of a scalar applies, lists
/// accumulate, `--` ends the flags. Upstream: pflag, FlagSet.Parse.
pub fn parse(component: &'static Component, arguments: &[String]) -> Parsed {
    let values = vec![None; component.flags.len()];
    let mut parsed = Parsed { component, values, errors: Vec::new(), refused: Vec::new() };
    let mut positional = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            positional.extend(rest.by_ref().cloned());
        } else if let Some(long) = argument.strip_prefix("--") {
            parsed.long(argument, long, &mut rest);
        } else if let Some(letters) = argument.strip_prefix('-').filter(|text| !text.is_empty()) {
            parsed.short(letters, &mut rest);
        } else {
            positional.push(argument.clone());
        }
    }
    if positional.iter().any(|argument| !argument.is_empty()) {
        parsed.errors.push(FlagError::Positional { program: component.name, arguments: positional });
    }
    parsed
}

type Rest<'a> = std::slice::Iter<'a, String>;

impl Parsed {
    fn long(&mut self, argument: &str, long: &str, rest: &mut Rest<'_>) {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        if name.is_empty() || name.starts_with('-') {
            let argument = argument.to_owned();
            return self.errors.push(FlagError::Syntax { argument });
        }
        let Some(index) = self.component.position(name) else {
            self.unknown(name);
            if value.is_none() {
                skip_likely_value(rest);
            }
            return;
        };
        match value {
            Some(value) => self.set(index, value),
            None => self.set_from_next(index, rest),
        }
    }

    /// Parses a group of letters after one dash. Upstream: pflag, parseSingleShortArg.
    fn short(&mut self, letters: &str, rest: &mut Rest<'_>) {
        let mut tail = letters;
        while let Some(letter) = tail.chars().next() {
            let after = &tail[letter.len_utf8()..];
            let Some(index) = self.component.flags.iter().position(|flag| flag.shorthand() == Some(letter)) else {
                let argument = letters.to_owned();
                return self.errors.push(FlagError::UnknownShorthand { letter, argument });
            };
            match after.strip_prefix('=').filter(|value| !value.is_empty()) {
                Some(value) => return self.set(index, value),
                None if self.component.flags[index].kind.bare().is_some() => {
                    self.set_from_next(index, rest);
                    tail = after;
                }
                None if !after.is_empty() => return self.set(index, after),
                None => return self.set_from_next(index, rest),
            }
        }
    }

    fn unknown(&mut self, name: &str) {
        let shown = self.component.flags.iter().filter(|flag| flag.deprecated.is_none());
        let known = nearest(&name.replace('_', "-"), shown.map(|flag| flag.name));
        self.errors.push(FlagError::Unknown { name: name.to_owned(), nearest: known.map(str::to_owned) });
    }

    /// Sets a flag without `=`: to the value of the bare flag, or to the next argument.
    fn set_from_next(&mut self, index: usize, rest: &mut Rest<'_>) {
        let Flag { name, kind, .. } = self.component.flags[index];
        match kind.bare().or_else(|| rest.next().map(String::as_str)) {
            Some(value) => self.set(index, value),
            None => {
                self.refused.push(name);
                let accepted = kind.accepted();
                self.errors.push(FlagError::MissingArgument { name, accepted });
            }
        }
    }

    fn set(&mut self, index: usize, text: &str) {
        let Flag { name, kind, default, .. } = self.component.flags[index];
        // An empty address does not change the value. Upstream: pflag, ipValue.Set.
        let is_blank_address = kind == super::value::Type::Ip && text.is_empty();
        if is_blank_address && self.values[index].is_some() {
            return;
        }
        let text = if is_blank_address { default } else { text };
        match kind.parse(text, self.values[index].as_ref()) {
            Some(value) => self.values[index] = Some(value),
            None => {
                self.refused.push(name);
                self.errors.push(FlagError::Value { name, value: text.to_owned(), accepted: kind.accepted() });
            }
        }
    }
}

/// Skips the argument after an unknown flag unless it looks like a flag, so that it is not also reported as a stray
/// argument.
fn skip_likely_value(rest: &mut Rest<'_>) {
    if rest.as_slice().first().is_some_and(|next| !next.starts_with('-')) {
        rest.next();
    }
}
