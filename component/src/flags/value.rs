//! Parsing of flag values, by the rules of Go's strconv, time and pflag.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The types of flag values; each variant is one of pflag's or component-base's value types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// strconv.ParseBool; the bare flag means true.
    Bool,
    /// A 64-bit whole number.
    Int,
    /// A 32-bit whole number.
    Int32,
    /// A number with 32-bit precision.
    Float32,
    /// A 64-bit number.
    Float64,
    /// A Go duration, such as `1m30s`.
    Duration,
    /// Any text.
    Text,
    /// An IP address; an empty text changes nothing.
    Ip,
    /// pflag's StringSlice: one CSV record; the first occurrence replaces the default, later ones append.
    Strings,
    /// pflag's Int32Slice: as Strings, of 32-bit numbers.
    Int32s,
    /// pflag's StringToString: `key=value` pairs, merged over occurrences.
    Map,
    /// component-base's NamedCertKeyArray: `cert,key[:host,...]`, one per occurrence.
    CertKeys,
    /// component-base's multimap of feature gates: `[component:]gate=bool`, accumulated over occurrences.
    Gates,
    /// component-base's feature gates of binaries without versions: `gate=bool`, accumulated over occurrences.
    PlainGates,
    /// Log verbosity: a non-negative whole number.
    Level,
    /// `pattern=N` pairs, accumulated over occurrences.
    VModule,
    /// component-base's verflag; the bare flag means true.
    Version,
    /// An amount in the syntax of apimachinery's resource.Quantity.
    Quantity,
}

/// The value of one flag.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A value of type [`Type::Bool`].
    Bool(bool),
    /// A value of type [`Type::Int`], [`Type::Int32`] or [`Type::Level`].
    Int(i64),
    /// A value of type [`Type::Float32`] or [`Type::Float64`].
    Float(f64),
    /// A value of type [`Type::Duration`], in nanoseconds; may be negative.
    Nanos(i64),
    /// A value of type [`Type::Text`], [`Type::Version`] or [`Type::Quantity`].
    Text(String),
    /// A value of type [`Type::Ip`].
    Ip(IpAddr),
    /// A value of type [`Type::Strings`], [`Type::CertKeys`], [`Type::Gates`] or [`Type::PlainGates`]; the items of
    /// gates are `[component:]gate=bool`.
    Strings(Vec<String>),
    /// A value of type [`Type::Int32s`].
    Int32s(Vec<i32>),
    /// A value of type [`Type::Map`].
    Map(BTreeMap<String, String>),
    /// A value of type [`Type::VModule`].
    VModule(Vec<(String, u32)>),
}

impl Type {
    /// Returns the value of the bare flag (pflag's NoOptDefVal), if it needs no argument.
    pub fn bare(self) -> Option<&'static str> {
        matches!(self, Type::Bool | Type::Version).then_some("true")
    }

    /// Returns the hint after the name in `--help`; empty for a bool. Upstream: pflag, UnquoteUsage.
    pub fn hint(self) -> &'static str {
        match self {
            Type::Bool => "",
            Type::Int => "int",
            Type::Int32 => "int32",
            Type::Float32 => "float32",
            Type::Float64 => "float",
            Type::Duration => "duration",
            Type::Text => "string",
            Type::Ip => "ip",
            Type::Strings => "strings",
            Type::Int32s => "int32Slice",
            Type::Map => "stringToString",
            Type::CertKeys => "namedCertKey",
            Type::Gates => "colonSeparatedMultimapStringString",
            Type::PlainGates => "mapStringBool",
            Type::Level => "Level",
            Type::VModule => "pattern=N,...",
            Type::Version => "version[=true]",
            Type::Quantity => "quantity",
        }
    }

    /// Returns a description of the accepted values, for error messages.
    pub fn accepted(self) -> &'static str {
        match self {
            Type::Bool => "true or false (also 1, t, T, TRUE, True, 0, f, F, FALSE, False)",
            Type::Int => "a whole number",
            Type::Int32 => "a whole number between -2147483648 and 2147483647",
            Type::Float32 | Type::Float64 => "a number, such as 0.1",
            Type::Duration => "a duration with units (ns, us, ms, s, m, h), such as 30s, 1m30s or 300ms",
            Type::Text => "any text",
            Type::Ip => "an IPv4 or IPv6 address",
            Type::Strings => "a comma-separated list; put an item that contains a comma or a quote in double quotes",
            Type::Int32s => "a comma-separated list of whole numbers",
            Type::Map => "comma-separated key=value pairs",
            Type::CertKeys => "certfile,keyfile or certfile,keyfile:host,host",
            Type::Gates => "comma-separated [component:]gate=true|false pairs",
            Type::PlainGates => "comma-separated gate=true|false pairs",
            Type::Level => "a whole number between 0 and 2147483647",
            Type::VModule => "comma-separated pattern=N pairs",
            Type::Version => {
                "true, false, raw, or this version: v1.37.0, optionally with a pre-release and a build, such as v1.37.0-rc.1+5"
            }
            Type::Quantity => "an amount, such as 512, 1k, 2Ki or 3M",
        }
    }

    /// Returns true if `default`, as pflag would print it, is this type's zero value, which `--help` does not show.
    /// Upstream: pflag, defaultIsZeroValue.
    pub fn is_zero(self, default: &str) -> bool {
        match self {
            Type::Strings => default == "[]",
            Type::Int32s | Type::Map | Type::CertKeys | Type::Ip => false,
            Type::Duration => default == "0s",
            Type::Text | Type::Gates | Type::PlainGates | Type::VModule => default.is_empty(),
            Type::Bool | Type::Version => default == "false",
            _ => default == "0",
        }
    }

    /// Parses a default of the table, in the format that pflag prints: lists are in brackets.
    pub fn default(self, printed: &str) -> Option<Value> {
        let items = || printed.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        match self {
            Type::Strings | Type::CertKeys => {
                let items = items()?.split(',').filter(|item| !item.is_empty());
                Some(Value::Strings(items.map(str::to_owned).collect()))
            }
            Type::Gates | Type::PlainGates => Some(Value::Strings(Vec::new())),
            Type::Int32s => Some(Value::Int32s(Vec::new())),
            Type::Map => Some(Value::Map(BTreeMap::new())),
            Type::VModule => Some(Value::VModule(Vec::new())),
            _ => self.parse(printed, None),
        }
    }

    /// Parses one occurrence of a flag. `before` is the value of earlier occurrences on the same command line (`None`
    /// at the first): lists and maps are extended, everything else is replaced. `None` if the text is not accepted.
    pub fn parse(self, text: &str, before: Option<&Value>) -> Option<Value> {
        match self {
            Type::Bool => parse_bool(text).map(Value::Bool),
            Type::Int => parse_int(text).map(Value::Int),
            Type::Int32 => parse_int32(text).map(|number| Value::Int(number.into())),
            Type::Float32 => parse_float(text).and_then(|number| {
                let narrow = number as f32;
                (narrow.is_finite() || !number.is_finite()).then(|| Value::Float(narrow.into()))
            }),
            Type::Float64 => parse_float(text).map(Value::Float),
            Type::Duration => parse_duration(text).map(Value::Nanos),
            Type::Text => Some(Value::Text(text.to_owned())),
            Type::Ip => text.trim().parse().ok().map(Value::Ip),
            Type::Strings => Some(Value::Strings(extended(before, csv_record(text)?))),
            Type::CertKeys => Some(Value::Strings(extended(before, vec![cert_key(text)?]))),
            Type::Gates | Type::PlainGates => Some(Value::Strings(extended(before, gate_pairs(text)))),
            Type::Int32s => {
                let mut numbers = match before {
                    Some(Value::Int32s(numbers)) => numbers.clone(),
                    _ => Vec::new(),
                };
                for item in text.split(',') {
                    numbers.push(parse_int32(item)?);
                }
                Some(Value::Int32s(numbers))
            }
            Type::Map => {
                let mut map = match before {
                    Some(Value::Map(map)) => map.clone(),
                    _ => BTreeMap::new(),
                };
                map.extend(key_value_pairs(text)?);
                Some(Value::Map(map))
            }
            Type::Level => parse_level(text).map(|level| Value::Int(level.into())),
            Type::VModule => {
                let mut patterns = match before {
                    Some(Value::VModule(patterns)) => patterns.clone(),
                    _ => Vec::new(),
                };
                for item in text.split(',').filter(|item| !item.is_empty()) {
                    let (pattern, level) = item.split_once('=')?;
                    if pattern.is_empty() {
                        return None;
                    }
                    patterns.push((pattern.to_owned(), parse_level(level)?));
                }
                Some(Value::VModule(patterns))
            }
            Type::Version => parse_version_flag(text).map(Value::Text),
            Type::Quantity => is_quantity(text).then(|| Value::Text(text.to_owned())),
        }
    }
}

fn extended(before: Option<&Value>, more: Vec<String>) -> Vec<String> {
    match before {
        Some(Value::Strings(items)) => items.iter().cloned().chain(more).collect(),
        _ => more,
    }
}

/// Parses the spellings of strconv.ParseBool.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a whole number like strconv.ParseInt with base 0: prefixes 0x, 0o, 0b and 0; underscores between digits, and
/// after a prefix.
fn parse_int(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, body) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        Some(two) if two.starts_with('0') => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let prefixed = base != 10;
    let misplaced = body.ends_with('_') || body.contains("__") || (!prefixed && body.starts_with('_'));
    // `from_str_radix` accepts a sign at the start of the digits.
    if misplaced || body.contains(['+', '-']) {
        return None;
    }
    let magnitude = i128::from_str_radix(&body.replace('_', ""), base).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

fn parse_int32(text: &str) -> Option<i32> {
    i32::try_from(parse_int(text)?).ok()
}

fn parse_level(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let level: i32 = plain.then(|| text.parse().ok())??;
    u32::try_from(level).ok()
}

/// Parses a decimal number like strconv.ParseFloat, with underscores between digits; Go's hexadecimal ones are not
/// supported.
fn parse_float(text: &str) -> Option<f64> {
    let digit = |index: usize| text.as_bytes().get(index).is_some_and(u8::is_ascii_digit);
    let is_between_digits = |index: usize| index > 0 && digit(index - 1) && digit(index + 1);
    if !text.match_indices('_').all(|(index, _)| is_between_digits(index)) {
        return None;
    }
    let number: f64 = text.replace('_', "").parse().ok()?;
    let overflow = number.is_infinite() && text.bytes().any(|byte| byte.is_ascii_digit());
    (!overflow).then_some(number)
}

/// Parses a Go duration (time.ParseDuration) into nanoseconds; `None` if it is malformed, or does not fit into 64
/// bits. Only `0` needs no unit.
pub fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        nanos = nanos.checked_add(scaled(number, unit_nanos(unit)?)?)?;
        rest = next;
    }
    i64::try_from(if negative { -nanos } else { nanos }).ok()
}

fn unit_nanos(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        _ => return None,
    })
}

fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i128>().ok() };
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    digits(whole)?.checked_mul(unit)?.checked_add(digits(fraction)? * unit / scale)
}

/// Parses the first record of a CSV text as strictly as Go (encoding/csv): the text of an item may contain quotes only
/// if the whole item is quoted, and then each as two quotes.
fn csv_record(text: &str) -> Option<Vec<String>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut items = Vec::new();
    let mut letters = text.chars().peekable();
    loop {
        let mut item = String::new();
        if letters.next_if_eq(&'"').is_some() {
            loop {
                match letters.next()? {
                    '"' if letters.next_if_eq(&'"').is_some() => item.push('"'),
                    '"' => break,
                    letter => item.push(letter),
                }
            }
        } else {
            while let Some(letter) = letters.next_if(|letter| !matches!(letter, ',' | '\n')) {
                if letter == '"' {
                    return None;
                }
                item.push(letter);
            }
        }
        items.push(item);
        match letters.next() {
            None | Some('\n') => return Some(items),
            Some(',') => {}
            Some(_) => return None,
        }
    }
}

fn key_value_pairs(text: &str) -> Option<Vec<(String, String)>> {
    let records = match text.matches('=').count() {
        0 => return None,
        1 => vec![text.trim_matches('"').to_owned()],
        _ => csv_record(text)?,
    };
    let pair = |record: String| {
        let (key, value) = record.split_once('=')?;
        Some((key.to_owned(), value.to_owned()))
    };
    records.into_iter().map(pair).collect()
}

fn cert_key(text: &str) -> Option<String> {
    let (files, hosts) = match text.split_once(':') {
        Some((files, hosts)) => (files, Some(hosts)),
        None => (text, None),
    };
    let has_valid_hosts = hosts.is_none_or(|hosts| !hosts.trim().is_empty());
    (has_valid_hosts && files.matches(',').count() == 1).then(|| text.to_owned())
}

fn gate_pairs(text: &str) -> Vec<String> {
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.trim().to_owned()).collect()
}

/// The version of Kubernetes whose command lines are implemented.
pub const KUBE_VERSION: &str = "v1.37.0";

fn parse_version_flag(text: &str) -> Option<String> {
    if text == "raw" {
        return Some(text.to_owned());
    }
    if !text.starts_with('v') {
        return parse_bool(text).map(|yes| yes.to_string());
    }
    let suffix = text.strip_prefix(KUBE_VERSION)?;
    let (release, build) = match suffix.split_once('+') {
        Some((release, build)) => (release, Some(build)),
        None => (suffix, None),
    };
    let release = match release.strip_prefix('-') {
        Some(release) => are_identifiers(release, true),
        None => release.is_empty(),
    };
    let is_valid = release && build.is_none_or(|build| are_identifiers(build, false));
    is_valid.then(|| text.to_owned())
}

/// Returns true if `text` consists of dot-separated identifiers of semantic versioning; in a pre-release, numbers have
/// no leading zero.
fn are_identifiers(text: &str, pre_release: bool) -> bool {
    text.split('.').all(|part| {
        let letters = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let number = part.bytes().all(|byte| byte.is_ascii_digit());
        let padded = pre_release && number && part.len() > 1 && part.starts_with('0');
        !part.is_empty() && letters && !padded
    })
}

fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let body = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = body.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(body.len());
    let (number, suffix) = body.split_at(end);
    let exponent = suffix.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i32>().is_ok());
    number.bytes().any(|byte| byte.is_ascii_digit())
        && number.matches('.').count() <= 1
        && (exponent || SUFFIXES.contains(&suffix))
}

/// Returns true if an accepted quantity is zero.
pub(super) fn quantity_is_zero(text: &str) -> bool {
    let number = text.split(|letter: char| letter.is_ascii_alphabetic()).next();
    number.is_none_or(|number| !number.bytes().any(|byte| (b'1'..=b'9').contains(&byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_parsed_as_go_does() {
        let second = 1_000_000_000;
        for (text, want) in [
            ("0", Some(0)),
            ("5s", Some(5 * second)),
            ("+5s", Some(5 * second)),
            ("-1.5h", Some(-5400 * second)),
            ("5m0s", Some(300 * second)),
            ("8760h0m0s", Some(8760 * 3600 * second)),
            ("1h1m1s1ms1us1ns", Some(3661 * second + 1_001_001)),
            ("1\u{b5}s", Some(1000)),
            (".5s", Some(second / 2)),
            ("1.s", Some(second)),
            ("5", None),
            ("", None),
            ("-", None),
            ("s", None),
            (".s", None),
            ("1.2.3s", None),
            ("1d", None),
            ("1s5", None),
            ("1 s", None),
            ("9999999h", None),
        ] {
            assert_eq!(parse_duration(text), want, "{text:?}");
        }
    }

    #[test]
    fn whole_numbers_are_parsed_with_base_zero() {
        for (text, want) in [
            ("10", Some(10)),
            ("-3", Some(-3)),
            ("+3", Some(3)),
            ("0", Some(0)),
            ("0x1F", Some(31)),
            ("017", Some(15)),
            ("0o17", Some(15)),
            ("0b11", Some(3)),
            ("1_000", Some(1000)),
            ("0x_ff", Some(255)),
            ("1__0", None),
            ("_1", None),
            ("1_", None),
            ("08", None),
            ("--1", None),
            ("0x", None),
            ("0x_+1", None),
            ("0_+7", None),
            ("", None),
            ("1.0", None),
            ("2147483648", None),
        ] {
            assert_eq!(parse_int32(text), want, "{text:?}");
        }
    }

    #[test]
    fn each_type_accepts_the_values_that_upstream_accepts() {
        for (kind, good, bad) in [
            (Type::Bool, "T", "yes"),
            (Type::Bool, "False", "tRUE"),
            (Type::Level, "2", "-1"),
            (Type::Level, "2147483647", "2147483648"),
            (Type::Level, "010", "0x1"),
            (Type::Float32, "1e3", "1e39"),
            (Type::Float64, "inf", "x"),
            (Type::Float64, "1_0.5", "_1"),
            (Type::Ip, "::1", "localhost"),
            (Type::Ip, " 10.0.0.1 ", "10.0.0.01"),
            (Type::Strings, r#"a,"b,c""#, r#"a"b"#),
            (Type::Strings, "", r#""a"#),
            (Type::Int32s, "29,0x17", "29,"),
            (Type::Map, "m,l=v", "m"),
            (Type::CertKeys, "a.crt,a.key:*.x,y", "a.crt,a.key: "),
            (Type::CertKeys, "a.crt,a.key", "a.crt"),
            (Type::VModule, "x=1,,y*=2", "x=1=2"),
            (Type::VModule, "", "=1"),
            (Type::Version, "raw", "v1.36.0"),
            (Type::Version, "v1.37.0-custom+1", "v1.37.0-"),
            (Type::Version, "v1.37.0-0.a-b", "v1.37.0-01"),
            (Type::Version, "v1.37.0+01", "v1.37.0+a..b"),
            (Type::Quantity, "2Ki", "2Kb"),
            (Type::Quantity, "1k", "1K"),
            (Type::Quantity, "1e3", "z"),
            (Type::Quantity, "0.5", "1.2.3"),
        ] {
            assert!(kind.parse(good, None).is_some(), "{kind:?} accepts {good:?}");
            assert!(kind.parse(bad, None).is_none(), "{kind:?} refuses {bad:?}");
        }
    }

    #[test]
    fn zero_quantities_are_recognized() {
        for (text, zero) in [("0", true), ("0Ki", true), ("0e5", true), ("0.1", false), ("5Mi", false)] {
            assert_eq!(quantity_is_zero(text), zero, "{text}");
        }
    }

    #[test]
    fn lists_append_after_the_first_occurrence() {
        let first = Type::Strings.parse("a,b", None).unwrap();
        let second = Type::Strings.parse(r#""c,d""#, Some(&first)).unwrap();
        let want = ["a", "b", "c,d"].map(str::to_owned);
        assert_eq!(second, Value::Strings(want.to_vec()));
    }

    #[test]
    fn maps_merge_and_later_keys_win() {
        let first = Type::Map.parse(r#""a,b=1,2""#, None).unwrap();
        let second = Type::Map.parse("c=3,d=4", Some(&first)).unwrap();
        let third = Type::Map.parse("c=5", Some(&second)).unwrap();
        let want = [("a,b", "1,2"), ("c", "5"), ("d", "4")];
        let want = want.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(third, Value::Map(BTreeMap::from(want)));
    }

    #[test]
    fn version_is_that_of_the_gates() {
        assert_eq!(KUBE_VERSION, format!("v1.{}.0", crate::flags::gates::BINARY_MINOR));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in ".{0,12}") {
            for kind in [
                Type::Bool, Type::Int, Type::Int32, Type::Float32, Type::Float64, Type::Duration,
                Type::Text, Type::Ip, Type::Strings, Type::Int32s, Type::Map, Type::CertKeys,
                Type::Gates, Type::PlainGates, Type::Level, Type::VModule, Type::Version, Type::Quantity,
            ] {
                let value = kind.parse(&text, None);
                prop_assert!(kind != Type::Text || value == Some(Value::Text(text.clone())));
            }
        }

        #[test]
        fn quoted_lists_round_trip(items in prop::collection::vec("[a-z,\" ]{0,6}", 1..5)) {
            let quoted: Vec<String> =
                items.iter().map(|item| format!("\"{}\"", item.replace('"', "\"\""))).collect();
            prop_assert_eq!(csv_record(&quoted.join(",")), Some(items));
        }

        #[test]
        fn whole_seconds_round_trip(seconds in -1_000_000_i64..1_000_000) {
            prop_assert_eq!(parse_duration(&format!("{seconds}s")), Some(seconds * 1_000_000_000));
        }
    }
}
