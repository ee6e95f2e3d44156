//! Random command lines, similar to valid ones and arbitrary.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn words() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof![
        4 => prop::sample::select(FLAGS.iter().map(|flag| flag.name.to_owned()).collect::<Vec<_>>()),
        1 => "[-a-z_=]{0,12}",
    ];
    let value = prop_oneof![
        "[-+0-9.eEuµhmsnxKMGi]{0,12}",
        "[*a-z,=:/\\-]{0,16}",
        Just("true".to_owned()),
        Just("AllAlpha=true".to_owned()),
        Just("1.36".to_owned()),
        Just("10.0.0.0/8,fd00::/48".to_owned()),
        any::<String>(),
    ];
    let word = (name, value, 0..4_u8).prop_map(|(name, value, form)| match form {
        0 => format!("--{name}={value}"),
        1 => format!("--{name}"),
        2 => value,
        _ => format!("-{name}"),
    });
    vec(word, 0..8)
}

proptest! {
    #[test]
    fn any_command_line_is_read_or_refused(words in words()) {
        match parse(words) {
            Ok(Invocation::Run(options)) => {
                let _ = (options.without_effect(), options.deprecations(), options.enabled().count());
            }
            Ok(_) => {}
            Err(errors) => prop_assert!(!errors.to_string().is_empty()),
        }
    }
}
