//! Escapes of the text format, in help texts and in the values of labels.

/// Returns a help text with escapes: each help is one line.
pub(super) fn escaped(help: &str) -> String {
    help.replace('\\', "\\\\").replace('\n', "\\n")
}

/// Returns the value of a label with escapes.
pub(super) fn escaped_value(value: &str) -> String {
    escaped(value).replace('"', "\\\"")
}

/// Returns a help text or the value of a label without the escapes of the text format.
pub(super) fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                Some(escaped) => plain.push(escaped),
                None => {}
            },
            character => plain.push(character),
        }
    }
    plain
}
