//! The log: its verbosity by `--v` and `--vmodule`, its format, and its streams.

mod one_line;

use std::io::{self, IsTerminal};
use std::sync::Arc;

use runtime::serve::SetVerbosity;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::MakeWriterExt as _;
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, registry, reload};

use crate::flags::Options;
use one_line::OneLine;

/// Libraries that the client and the server use. Their many messages are of little use, and need a higher verbosity.
const VERBOSE_LIBRARIES: [&str; 4] = ["hyper", "h2", "tower", "rustls"];
/// Crates whose messages have the same verbosity as those of the binary's crate.
const OURS: [&str; 8] =
    ["cel_check", "component", "kinds", "provider_aws", "provider_kubevirt", "provider_mock", "providers", "runtime"];

/// The verbosity, with exceptions for certain source files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verbosity {
    binary: &'static str,
    /// `--v`: applies to all files without a matching pattern.
    default_level: u32,
    /// Patterns of source files; the first match applies.
    files: Vec<(String, u32)>,
}

impl Verbosity {
    /// Returns the verbosity for a source file.
    fn of_file(&self, file: Option<&str>) -> u32 {
        let chosen = |file| self.files.iter().find(|(pattern, _)| matches_file(pattern, file));
        file.and_then(chosen).map_or(self.default_level, |(_, verbosity)| *verbosity)
    }

    fn is_enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.max_level(self.of_file(metadata.file()), metadata.target())
    }

    /// Returns the finest level of a crate's messages at a verbosity.
    fn max_level(&self, verbosity: u32, target: &str) -> Level {
        let of = |crates: &[&str]| crates.contains(&target.split("::").next().unwrap_or_default());
        let ours = of(&OURS) || of(&[self.binary]);
        match verbosity {
            0..=1 => Level::INFO,
            // As in upstream's client, 6 and above log each request.
            6.. if ours => Level::TRACE,
            2..=4 if ours => Level::DEBUG,
            2..=4 => Level::INFO,
            5..=7 if of(&VERBOSE_LIBRARIES) => Level::INFO,
            5..=7 => Level::DEBUG,
            _ => Level::TRACE,
        }
    }
}

/// Returns true if a pattern of `--vmodule` matches a source file: the file's name without `.rs`, or the name of a
/// folder that contains the file. So the name of a controller matches all of its files.
fn matches_file(pattern: &str, file: &str) -> bool {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    path.split('/').any(|part| matches(pattern.as_bytes(), part.as_bytes()))
}

/// Returns true if a name matches a pattern, in which `*` is any text and `?` any single byte.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut comparison = Comparison { pattern, name, retry: None };
    loop {
        if let Some(result) = comparison.step() {
            return result;
        }
    }
}

/// A comparison of a name with a pattern. It compares each byte of the pattern with each byte of the name at most once.
struct Comparison<'a> {
    /// The part of the pattern that is not matched yet.
    pattern: &'a [u8],
    /// The part of the name that is not matched yet.
    name: &'a [u8],
    /// The pattern after the last `*`, and the part of the name with which it was last compared. After a mismatch, that
    /// pattern is compared with the part that starts one byte later. No earlier `*` has to be tried again.
    retry: Option<(&'a [u8], &'a [u8])>,
}

impl Comparison<'_> {
    /// Compares one byte; returns the result at the end.
    fn step(&mut self) -> Option<bool> {
        match (self.pattern.split_first(), self.name.split_first()) {
            (None, None) => return Some(true),
            (Some((b'*', rest)), _) => {
                self.pattern = rest;
                self.retry = Some((rest, self.name));
                return None;
            }
            (Some((letter, rest)), Some((own, later))) if *letter == b'?' || letter == own => {
                self.pattern = rest;
                self.name = later;
                return None;
            }
            _ => {}
        }
        let Some((after, [_, later @ ..])) = self.retry else { return Some(false) };
        self.pattern = after;
        self.name = later;
        self.retry = Some((after, later));
        None
    }
}

impl<S: Subscriber> Filter<S> for Verbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.is_enabled(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.is_enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let highest = self.files.iter().map(|(_, verbosity)| *verbosity).chain([self.default_level]).max();
        Some(LevelFilter::from_level(self.max_level(highest?, self.binary)))
    }
}

/// Starts logging according to the options; returns the setter of the verbosity.
pub(crate) fn start(binary: &'static str, options: &Options) -> SetVerbosity {
    let verbosity = Verbosity { binary, default_level: options.verbosity, files: options.vmodule.clone() };
    let form = if options.logging_format == "json" { Form::Json } else { Form::Text };
    let split = match form {
        Form::Text => "log-text-split-stream",
        Form::Json => "log-json-split-stream",
    };
    if options.values.get_bool(split) {
        let colours = io::stderr().is_terminal() && io::stdout().is_terminal();
        let (subscriber, set) = subscriber(verbosity, form, colours, streams(form, io::stderr, io::stdout));
        subscriber.init();
        set
    } else {
        let (subscriber, set) = subscriber(verbosity, form, io::stderr().is_terminal(), io::stderr);
        subscriber.init();
        set
    }
}

/// Returns a writer that writes errors to `errors` and other lines to `others`. Warnings count as errors in the text
/// format, but not in JSON.
///
/// Upstream: component-base logs/api/v1, klogMsgRouter; logs/json, NewJSONLogger.
fn streams<E, O>(form: Form, errors: E, others: O) -> impl for<'a> MakeWriter<'a> + Send + Sync + 'static
where
    E: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    O: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let max_level = match form {
        Form::Text => Level::WARN,
        Form::Json => Level::ERROR,
    };
    errors.with_max_level(max_level).or_else(others)
}

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

fn subscriber<W>(
    verbosity: Verbosity,
    form: Form,
    colours: bool,
    writer: W,
) -> (impl Subscriber + Send + Sync + use<W>, SetVerbosity)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(verbosity.clone());
    let lines = fmt::layer().with_writer(OneLine(writer)).with_ansi(colours);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match form {
        Form::Json => lines.json().boxed(),
        Form::Text => lines.boxed(),
    };
    let set: SetVerbosity = Arc::new(move |text: &str| {
        let default_level = text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))?;
        handle.reload(Verbosity { default_level, ..verbosity.clone() }).map_err(|error| error.to_string())
    });
    (registry().with(lines.with_filter(filter)), set)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing::{debug, error, info, info_span, trace, warn};

    use runtime::lock::lock;

    use super::*;

    /// The logged lines.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(lock(&self.0).clone()).unwrap()
        }
    }

    fn verbosity(default_level: u32, files: &[(&str, u32)]) -> Verbosity {
        let files = files.iter().map(|(pattern, verbosity)| ((*pattern).to_owned(), *verbosity)).collect();
        Verbosity { binary: "kcm", default_level, files }
    }

    proptest::proptest! {
        #[test]
        fn any_pattern_is_matched_in_a_bounded_number_of_steps(pattern in "[*?ab]{0,40}", name in "[ab]{0,60}") {
            let mut comparison = Comparison { pattern: pattern.as_bytes(), name: name.as_bytes(), retry: None };
            let max_steps = (pattern.len() + 1) * (name.len() + 1);
            let found = (0..max_steps).find_map(|_| comparison.step());
            // Compute the same with a table: the prefixes of the name that each prefix of the pattern matches.
            let mut row = vec![true];
            row.resize(name.len() + 1, false);
            for letter in pattern.bytes() {
                let mut next = vec![letter == b'*' && row[0]];
                for (at, own) in name.bytes().enumerate() {
                    next.push(match letter {
                        b'*' => row[at + 1] || next[at],
                        letter => row[at] && (letter == b'?' || letter == own),
                    });
                }
                row = next;
            }
            proptest::prop_assert_eq!(found, Some(row[name.len()]), "`None` after {} steps", max_steps);
        }
    }

    #[test]
    fn verbosity_decides_the_level_of_each_crate() {
        for (level, target, finest) in [
            (0, "kcm::workloads::job", Level::INFO),
            (1, "hyper::client", Level::INFO),
            (2, "kcm::workloads::job", Level::DEBUG),
            (4, "runtime", Level::DEBUG),
            (4, "kube_client", Level::INFO),
            (4, "provider_aws::instances", Level::DEBUG),
            (5, "kube_client", Level::DEBUG),
            (5, "kcm::workloads::job", Level::DEBUG),
            (6, "runtime::write", Level::TRACE),
            (6, "kube_client", Level::DEBUG),
            (5, "h2::codec", Level::INFO),
            (8, "h2::codec", Level::TRACE),
            (10, "kcm", Level::TRACE),
        ] {
            assert_eq!(verbosity(level, &[]).max_level(level, target), finest, "--v={level} {target}");
        }
    }

    #[test]
    fn crates_of_the_workspace_have_the_verbosity_of_the_binary() {
        let manifest = include_str!("../../../Cargo.toml");
        let in_workspace = manifest.lines().filter_map(|line| {
            let (name, path) = (line.split_once(" = ")?.0, line.split_once("path = \"")?.1);
            (!path.starts_with("tests/") && !path.starts_with("examples/")).then(|| name.replace('-', "_"))
        });
        let mut crates: Vec<String> = in_workspace.collect();
        // The binaries' own crates, and one of tests.
        crates.retain(|name| !["kcm", "ccm", "provider_conformance"].contains(&&**name));
        crates.sort_unstable();
        assert_eq!(crates, OURS);
    }

    #[test]
    fn vmodule_patterns_match_files_and_folders() {
        for (pattern, file, expected) in [
            ("sync", "kcm/src/job/sync.rs", true),
            ("job", "kcm/src/job/sync.rs", true),
            ("cronjob", "kcm/src/job/sync.rs", false),
            ("*job", "kcm/src/cronjob/mod.rs", true),
            ("s?nc", "kcm/src/job/sync.rs", true),
            ("sync.rs", "kcm/src/job/sync.rs", false),
            ("decide*", "kcm/src/job/decide_pods.rs", true),
            ("decide*s", "kcm/src/job/decide_pods.rs", true),
            ("decide*x", "kcm/src/job/decide_pods.rs", false),
            ("*", "anything.rs", true),
            ("", "a.rs", false),
        ] {
            assert_eq!(matches_file(pattern, file), expected, "{pattern} {file}");
        }
        let some = verbosity(1, &[("job", 5), ("sync", 9)]);
        let of_file = |file| some.of_file(Some(file));
        let levels = ["kcm/src/job/sync.rs", "kcm/src/cronjob/sync.rs", "kcm/src/lib.rs"].map(of_file);
        assert_eq!(levels, [5, 9, 1]);
        assert_eq!(some.of_file(None), 1);
    }

    #[test]
    fn severe_lines_have_their_own_stream_when_streams_are_split() {
        for (form, severe) in [(Form::Text, [false, true, true]), (Form::Json, [false, false, true])] {
            let (errors, others) = (Log::default(), Log::default());
            let writers = (errors.clone(), others.clone());
            let writer = streams(form, move || writers.0.clone(), move || writers.1.clone());
            let (subscriber, _) = subscriber(verbosity(0, &[]), form, false, writer);
            tracing::subscriber::with_default(subscriber, || {
                info!("an info");
                warn!("a warning");
                error!("an error");
            });
            let found = |log: &Log| ["an info", "a warning", "an error"].map(|words| log.text().contains(words));
            assert_eq!(found(&errors), severe, "{form:?}");
            assert_eq!(found(&others), severe.map(|is_severe| !is_severe), "{form:?}");
        }
    }

    #[test]
    fn event_is_one_line_when_its_values_contain_line_ends() {
        let forged = "web\n2026-01-01T00:00:00Z ERROR kcm: forged\r\n";
        for form in [Form::Text, Form::Json] {
            let log = Log::default();
            let writer = log.clone();
            let (subscriber, _) = subscriber(verbosity(0, &[]), form, false, move || writer.clone());
            tracing::subscriber::with_default(subscriber, || {
                let span = info_span!("reconcile", key = %forged);
                span.in_scope(|| warn!(name = %forged, error = forged, "refused: {forged}"));
                info!("the next event");
            });
            let text = log.text();
            assert_eq!(text.split_inclusive(['\n', '\r']).count(), 2, "{text}");
            assert!(text.contains("\\n2026") && text.ends_with('\n'), "{text}");
        }
    }

    #[test]
    fn log_level_follows_the_flags_and_changes_at_run_time() {
        let log = |verbosity: Verbosity, form, act: &dyn Fn(&SetVerbosity)| {
            let log = Log::default();
            let writer = log.clone();
            let (subscriber, set) = subscriber(verbosity, form, false, move || writer.clone());
            tracing::subscriber::with_default(subscriber, || {
                let span = info_span!("reconcile", controller = "job-controller", key = "shop/job");
                span.in_scope(|| {
                    info!(pods = 3, "an info");
                    debug!("a debug");
                    act(&set);
                    debug!("a second debug");
                    trace!("a trace");
                    warn!("a warning");
                });
            });
            log.text()
        };
        let nothing: &dyn Fn(&SetVerbosity) = &|_| {};
        let flags = |level, files| Verbosity { binary: "component", ..verbosity(level, files) };
        let found = |text: &str| ["an info", "a debug", "a trace", "a warning"].map(|words| text.contains(words));

        assert_eq!(found(&log(flags(0, &[]), Form::Text, nothing)), [true, false, false, true]);
        assert_eq!(found(&log(flags(4, &[]), Form::Text, nothing)), [true, true, false, true]);
        assert_eq!(found(&log(flags(9, &[]), Form::Text, nothing)), [true, true, true, true]);
        assert_eq!(found(&log(flags(0, &[("log", 9)]), Form::Text, nothing)), [true, true, true, true]);
        assert_eq!(found(&log(flags(9, &[("log", 0)]), Form::Text, nothing)), [true, false, false, true]);
        assert_eq!(found(&log(flags(0, &[("other", 9)]), Form::Text, nothing)), [true, false, false, true]);

        let text = log(flags(0, &[]), Form::Text, &|set| {
            assert!(set("nine").unwrap_err().contains("invalid syntax"));
            set("4").unwrap();
        });
        assert!(!text.contains("a debug") && text.contains("a second debug"), "{text}");
        assert!(text.contains("reconcile{controller=\"job-controller\" key=\"shop/job\"}: "), "{text}");

        let lines: Vec<serde_json::Value> = log(flags(0, &[]), Form::Json, nothing)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["level"], &lines[0]["fields"]["pods"]), (&"INFO".into(), &3.into()), "{}", lines[0]);
        assert_eq!(lines[0]["span"]["name"], "reconcile");
        assert_eq!(
            (&lines[0]["span"]["controller"], &lines[0]["span"]["key"]),
            (&"job-controller".into(), &"shop/job".into())
        );
    }
}
