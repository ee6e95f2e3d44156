//! The values of flags in pflag's format, for `/flagz`.

use std::collections::BTreeMap;

use super::table::Flag;
use super::value::{Type, Value};
use super::values::Values;

impl Values {
    /// Returns every flag with its value in pflag's format.
    pub fn printed(&self) -> BTreeMap<String, String> {
        let flags = self.flags.iter().zip(self.values.iter().zip(&self.set));
        let print = |(flag, (value, set)): (&Flag, (&Value, &bool))| {
            (flag.name.to_owned(), if *set { format_value(flag.kind, value) } else { flag.default.to_owned() })
        };
        flags.map(print).collect()
    }

    /// Returns a flag's duration in Go's format.
    pub fn duration_text(&self, name: &str) -> String {
        duration(self.nanos(name))
    }
}

/// Returns a value in the format of the String method of its Go type.
fn format_value(kind: Type, value: &Value) -> String {
    match value {
        Value::Bool(on) => on.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) if kind == Type::Float32 => (*number as f32).to_string(),
        Value::Float(number) => number.to_string(),
        Value::Nanos(nanos) => duration(*nanos),
        Value::Text(text) => text.clone(),
        Value::Ip(address) => address.to_string(),
        Value::Strings(items) => match kind {
            Type::CertKeys => format!("[{}]", items.join(";")),
            Type::Gates => gates(items),
            Type::PlainGates => {
                let mut items = items.clone();
                items.sort();
                items.join(",")
            }
            _ => format!("[{}]", csv_record(items.iter().cloned())),
        },
        Value::Int32s(numbers) => {
            format!("[{}]", numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        }
        Value::Map(map) => format!("[{}]", csv_record(map.iter().map(|(key, value)| format!("{key}={value}")))),
        Value::VModule(patterns) => {
            patterns.iter().map(|(pattern, level)| format!("{pattern}={level}")).collect::<Vec<_>>().join(",")
        }
    }
}

/// Formats gates as `component:gate=bool`, sorted by component, which is empty if it was not given.
fn gates(items: &[String]) -> String {
    let mut pairs: Vec<(&str, &str)> = items.iter().map(|item| item.split_once(':').unwrap_or(("", item))).collect();
    pairs.sort_by_key(|(component, _)| *component);
    pairs.into_iter().map(|(component, gate)| format!("{component}:{gate}")).collect::<Vec<_>>().join(",")
}

/// Returns one CSV record, quoted where necessary.
fn csv_record(items: impl Iterator<Item = String>) -> String {
    let quoted = |item: String| {
        let special = item.contains([',', '"', '\n', '\r']) || item.starts_with([' ', '\t']) || item == "\\.";
        if special { format!("\"{}\"", item.replace('"', "\"\"")) } else { item }
    };
    items.map(quoted).collect::<Vec<_>>().join(",")
}

/// Returns a duration in Go's format: `1m30s`, `1.5ms`.
fn duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let fraction = |unit: u64| {
        let (whole, rest) = (nanos / unit, nanos % unit);
        let digits = unit.to_string().len() - 1;
        let rest = format!("{rest:0digits$}");
        match rest.trim_end_matches('0') {
            "" => whole.to_string(),
            rest => format!("{whole}.{rest}"),
        }
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{sign}{nanos}ns"),
        1_000..1_000_000 => format!("{sign}{}µs", fraction(1_000)),
        1_000_000..1_000_000_000 => format!("{sign}{}ms", fraction(1_000_000)),
        _ => {
            let seconds = nanos / 1_000_000_000;
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            let rest = fraction(1_000_000_000);
            let decimals = rest.find('.').map_or("", |dot| &rest[dot..]);
            let seconds = format!("{}{decimals}s", seconds % 60);
            match (hours, minutes) {
                (0, 0) => format!("{sign}{seconds}"),
                (0, _) => format!("{sign}{minutes}m{seconds}"),
                _ => format!("{sign}{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_printed_as_pflag_does() {
        for (kind, given, wanted) in [
            (Type::Bool, "T", "true"),
            (Type::Int, "0x10", "16"),
            (Type::Float32, "0.1", "0.1"),
            (Type::Float64, "20", "20"),
            (Type::Duration, "90s", "1m30s"),
            (Type::Duration, "1h", "1h0m0s"),
            (Type::Duration, "0", "0s"),
            (Type::Duration, "1500us", "1.5ms"),
            (Type::Duration, "10.25s", "10.25s"),
            (Type::Duration, "-61s", "-1m1s"),
            (Type::Duration, "7ns", "7ns"),
            (Type::Strings, "a,b,\"c,d\"", "[a,b,\"c,d\"]"),
            (Type::Int32s, "1,2", "[1,2]"),
            (Type::Map, "b=2,a=1", "[a=1,b=2]"),
            (Type::CertKeys, "a,b:c", "[a,b:c]"),
            (Type::Gates, "X=true,kube:A=false", ":X=true,kube:A=false"),
            (Type::PlainGates, "X=true,A=false", "A=false,X=true"),
            (Type::VModule, "a=1,b=2", "a=1,b=2"),
            (Type::Ip, "::", "::"),
            (Type::Level, "4", "4"),
        ] {
            let value = kind.parse(given, None).expect("accepted");
            assert_eq!(format_value(kind, &value), wanted, "{given}");
        }
    }
}
