//! Compares the field numbers of each listed message with upstream's `generated.proto` file.

mod upstream;

use std::collections::{BTreeMap, HashSet};
use std::io::Write;

use kinds::schema::MESSAGES;
use kinds::template::pod_schema;
use upstream::{field, folders, read};

/// Field numbers by message and field.
type Messages = BTreeMap<String, BTreeMap<String, u32>>;

/// Parses the messages of a proto file in Kubernetes' generated format: one field per line, no nested messages.
fn parse(proto: &str) -> Messages {
    let mut messages = Messages::new();
    let mut current = None;
    for line in proto.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("message ").and_then(|rest| rest.strip_suffix(" {")) {
            messages.entry(name.to_owned()).or_default();
            current = Some(name);
        } else if line == "}" {
            current = None;
        } else if let (Some(message), Some((name, number))) = (current, field(line)) {
            messages.entry(message.to_owned()).or_default().insert(name.to_owned(), number);
        }
    }
    messages
}

/// Returns the differences between the list and upstream's files; `read` returns the text of a file.
fn mistakes(read: impl Fn(&str) -> String) -> Vec<String> {
    let mut files = BTreeMap::new();
    let mut mistakes = Vec::new();
    for listed in MESSAGES {
        let messages = files.entry(listed.file).or_insert_with(|| parse(&read(listed.file)));
        let Some(fields) = messages.get(listed.message) else {
            mistakes.push(format!("{} has no message {}", listed.file, listed.message));
            continue;
        };
        for (name, number) in listed.fields {
            match fields.get(*name) {
                Some(upstream) if upstream == number => {}
                Some(upstream) => {
                    mistakes.push(format!("{}.{name} is listed as {number}; it is {upstream}", listed.message));
                }
                None => mistakes.push(format!("{} has no field {name}, listed as {number}", listed.message)),
            }
        }
    }
    mistakes
}

#[test]
fn field_numbers_are_those_of_upstream() {
    match folders() {
        Ok(folders) => {
            let mistakes = mistakes(|file| read(&folders, file));
            assert!(mistakes.is_empty(), "{mistakes:#?}");
        }
        // Written directly, because a test's output is shown only if it fails.
        Err(why) => {
            writeln!(std::io::stderr(), "field_numbers_are_those_of_upstream: skipped: {why}").expect("stderr is open")
        }
    }
}

/// Returns the fields of a message that contain messages, by number, from a proto file.
fn nested(proto: &str, message: &str) -> BTreeMap<u32, String> {
    let begin = format!("message {message} {{");
    let lines = proto.lines().map(str::trim).skip_while(|line| *line != begin).take_while(|line| *line != "}");
    let holds_message = |line: &str| {
        let declared = line.trim_start_matches("optional ").trim_start_matches("repeated ");
        declared.starts_with(|first: char| first.is_ascii_uppercase() || first == '.') || declared.contains(", .")
    };
    let found = lines.filter(|line| holds_message(line)).filter_map(field);
    found.map(|(name, number)| (number, name.to_owned())).collect()
}

#[test]
fn messages_inside_a_pod_spec_are_those_of_upstream() {
    let Ok(folders) = folders() else { return };
    for message in pod_schema::MESSAGES {
        let listed: BTreeMap<u32, String> =
            message.nested.iter().map(|nested| (nested.number, nested.field.to_owned())).collect();
        assert_eq!(listed, nested(&read(&folders, message.file), message.name), "{}", message.name);
    }
}

#[test]
fn messages_and_numbers_are_listed_once() {
    let mut messages = HashSet::new();
    for listed in MESSAGES {
        assert!(messages.insert((listed.file, listed.message)), "{} is listed twice", listed.message);
        let numbers: HashSet<u32> = listed.fields.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers.len(), listed.fields.len(), "{}: a number is listed twice", listed.message);
    }
}

#[test]
fn comparison_finds_wrong_numbers() {
    let found = mistakes(|_| "message Time {\n  // The seconds = 7;\n  optional int64 seconds = 3;\n}\n".to_owned());
    for expected in ["Time.seconds is listed as 1; it is 3", "Time has no field nanos, listed as 2"] {
        assert!(found.iter().any(|mistake| mistake == expected), "{expected:?} is not in {found:#?}");
    }
    assert!(found.iter().any(|mistake| mistake.ends_with("has no message ObjectMeta")), "{found:#?}");
}
