//! The memory of a record compared with the bytes of its message, for each repeated field that a decoder may read.
//!
//! An empty element takes two bytes in a message. The API servers of an aggregated API, or tenants where upstream's
//! validation allows empty elements, decide how many there are.

#[macro_use]
mod every_kind;
mod upstream;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::Arc;

use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, Resource, Sections};
use upstream::{field, folders, read};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// Elements of the tested field.
const ELEMENTS: usize = 4000;

/// Maximum ratio of the memory of a record to the bytes of its message: twice the `MAX_EXPANSION` of `kinds::wire`,
/// because a list that has grown may have as much unused capacity as elements.
const MAX_RATIO: usize = 48;

/// Memory that any record may take.
const FLOOR_BYTES: usize = 24 << 10;

/// A message, by the folder of its file and its name.
type Name = (String, String);

/// A field that holds strings or messages.
#[derive(Clone)]
struct Field {
    name: String,
    number: u32,
    is_repeated: bool,
    /// The message that it holds, if it holds messages other than the entries of a map.
    message: Option<Name>,
}

/// The messages of all files that were read.
#[derive(Default)]
struct Schema {
    files: HashMap<String, HashMap<String, Vec<Field>>>,
}

impl Schema {
    /// Returns the fields of a message; `read` returns the text of a file.
    fn fields(&mut self, name: &Name, read: &impl Fn(&str) -> String) -> Vec<Field> {
        let file = self.files.entry(name.0.clone()).or_insert_with(|| parse(&name.0, &read(&name.0)));
        file.get(&name.1).cloned().unwrap_or_default()
    }
}

fn parse(file: &str, proto: &str) -> HashMap<String, Vec<Field>> {
    let mut messages: HashMap<String, Vec<Field>> = HashMap::new();
    let mut current = String::new();
    for line in proto.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("message ").and_then(|rest| rest.strip_suffix(" {")) {
            name.clone_into(&mut current);
        } else if let Some((name, number)) = field(line).filter(|_| line.contains(' ') && !line.starts_with("//")) {
            let is_map = line.starts_with("map<");
            let kind = line.split(' ').nth(1).unwrap_or_default();
            let message = Some(kind).filter(|kind| !is_map && !is_scalar(kind)).map(|kind| located(file, kind));
            let is_repeated = is_map || line.starts_with("repeated ");
            let field = Field { name: name.to_owned(), number, is_repeated, message };
            messages.entry(current.clone()).or_default().push(field);
        }
    }
    messages
}

fn is_scalar(kind: &str) -> bool {
    ["string", "bytes", "bool", "double", "int32", "int64", "uint32", "uint64"].contains(&kind)
}

/// Returns the folder and name of the message type that `file` calls `kind`.
fn located(file: &str, kind: &str) -> Name {
    match kind.strip_prefix(".k8s.io.").and_then(|rest| rest.rsplit_once('.')) {
        Some((package, message)) => (package.replace('.', "/"), message.to_owned()),
        None => (file.to_owned(), kind.to_owned()),
    }
}

/// The fields from an object down to a repeated one.
type FieldPath = Vec<Field>;

/// Returns the paths of the repeated fields of a message and, to a limited depth, of the messages in it.
fn repeated_fields(schema: &mut Schema, message: &Name, read: &impl Fn(&str) -> String) -> Vec<FieldPath> {
    const MAX_DEPTH: usize = 10;
    let mut found = Vec::new();
    let mut open: Vec<(FieldPath, Name)> = vec![(Vec::new(), message.clone())];
    while let Some((path, message)) = open.pop() {
        for field in schema.fields(&message, read) {
            let is_recursive = path.iter().any(|outer: &Field| outer.message == field.message);
            let path: FieldPath = path.iter().cloned().chain([field.clone()]).collect();
            if field.is_repeated {
                found.push(path.clone());
            }
            if let Some(inner) = field.message.filter(|_| path.len() < MAX_DEPTH && !is_recursive) {
                open.push((path, inner));
            }
        }
    }
    found
}

/// Returns an object with many empty elements in a field.
fn object(path: &[Field]) -> Vec<u8> {
    let (last, outer) = path.split_last().expect("a field");
    let mut message = Vec::new();
    (0..ELEMENTS).for_each(|_| message.put_bytes(last.number, &[]));
    for field in outer.iter().rev() {
        let mut around = Vec::new();
        around.put_bytes(field.number, &message);
        message = around;
    }
    let mut meta = Vec::new();
    for (number, text) in [(1, "name"), (3, "space"), (5, "6f1f6c0e-0000-4000-8000-000000000001"), (6, "42")] {
        meta.put_str(number, text);
    }
    let (content, rest): (&[u8], &[u8]) =
        if path[0].number == 1 { (kinds::wire::find(&message, 1), &[]) } else { (&[], &message) };
    let mut object = Vec::new();
    object.put_bytes(1, &[&meta, content].concat());
    object.extend_from_slice(rest);
    object
}

/// Returns the bytes that a record of a message takes; zero if the decoder refuses the message.
fn bytes_of_record<K: Kind>(object: &[u8]) -> usize {
    let before = dhat::HeapStats::get().curr_bytes;
    let context = Decode { interner: Arc::new(Interner::default()), sections: Sections(u32::MAX) };
    let record = K::decode(&context, object);
    let after = dhat::HeapStats::get().curr_bytes;
    if record.is_ok() { after.saturating_sub(before) } else { 0 }
}

/// Returns the folder of a kind's proto file.
fn folder(resource: &Resource) -> String {
    let group = match resource.group {
        "" => "core",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        group => group.split('.').next().unwrap_or_default(),
    };
    format!("api/{group}/{}", resource.version)
}

#[test]
fn record_takes_at_most_a_multiple_of_its_message() {
    let folders = match folders() {
        Ok(folders) => folders,
        Err(why) => {
            let name = "record_takes_at_most_a_multiple_of_its_message";
            return writeln!(std::io::stderr(), "{name}: skipped: {why}").expect("stderr is open");
        }
    };
    let read = |file: &str| read(&folders, file);
    let mut schema = Schema::default();
    let _profiler = dhat::Profiler::builder().testing().trim_backtraces(Some(1)).build();
    let (mut too_large, mut tested) = (BTreeMap::new(), 0);
    macro_rules! measure {
        ($($module:ident::$kind:ident),* $(,)?) => {$(
            let resource = <kinds::$module::$kind as Kind>::RESOURCE;
            let paths = repeated_fields(&mut schema, &(folder(&resource), resource.kind.to_owned()), &read);
            assert!(!paths.is_empty(), "{} has no repeated field", resource.kind);
            for path in paths {
                let object = object(&path);
                let bytes = bytes_of_record::<kinds::$module::$kind>(&object);
                tested += 1;
                if bytes > FLOOR_BYTES + MAX_RATIO * object.len() {
                    let names: Vec<&str> = path.iter().map(|field| &*field.name).collect();
                    let name = format!("{} {}", stringify!($kind), names.join("."));
                    too_large.insert(name, bytes / object.len());
                }
            }
        )*};
    }
    every_kind!(measure);
    assert!(tested > 1000, "{tested} fields");
    assert!(too_large.is_empty(), "bytes of memory per byte of the message: {too_large:#?}");
}
