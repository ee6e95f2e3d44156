//! Escape sequences of string literals.

/// Replaces the escape sequences of a string literal. A bytes literal is only checked: its result is not used.
pub fn unescape(content: &str, is_bytes: bool) -> Result<String, &'static str> {
    let content = content.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(content.len());
    let mut characters = content.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        let escape = characters.next().ok_or("escape sequence without an end")?;
        out.push(match escape {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\\' | '\'' | '"' | '`' | '?' => escape,
            'x' | 'X' => number(&mut characters, 2, 16, 0)?,
            'u' if !is_bytes => number(&mut characters, 4, 16, 0)?,
            'U' if !is_bytes => number(&mut characters, 8, 16, 0)?,
            '0'..='3' => number(&mut characters, 2, 8, escape as u32 - '0' as u32)?,
            _ => return Err("unknown escape sequence"),
        });
    }
    Ok(out)
}

/// Reads the code point of a numeric escape sequence: `digits` digits, which follow the digit with the value `first`.
fn number(characters: &mut std::str::Chars<'_>, digits: u32, radix: u32, first: u32) -> Result<char, &'static str> {
    let mut value = first;
    for _ in 0..digits {
        let digit = characters.next().and_then(|digit| digit.to_digit(radix)).ok_or("invalid digit in a string")?;
        value = value.checked_mul(radix).and_then(|value| value.checked_add(digit)).ok_or("invalid code point")?;
    }
    char::from_u32(value).ok_or("invalid code point")
}
