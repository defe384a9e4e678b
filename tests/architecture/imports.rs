//! Imports point down: a module uses only what stands below it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::parse::{Reference, references};
use crate::{assert_none, files_below, read, shown};

/// The modules of the library, the lowest first. A module imports only from rows that come before
/// its own.
const LAYERS: &[&[&str]] = &[
    // Values, and what every module may use.
    &["sync"],
    &["util", "framing"],
    &["element", "moved_type"],
    &["collective"],
    // Memory, devices, and where work runs.
    &["cuda", "issue_order"],
    &["memory", "stream"],
    &["executor"],
    // Communicators.
    &["handshake"],
    &["comm"],
    // What uses communicators.
    &["dist_collective", "environment"],
    &["network", "tensor_dict"],
    &["engine"],
    &["context"],
    &["builder", "diagnosis"],
    // Tests of the whole library.
    &["backend_contract"],
];

/// Only the folder of a backend names that backend. To all others it is a `dyn Backend`.
const BACKENDS: &[&str] = &["comm::host", "comm::nccl"];

/// Folders whose modules do not import each other in a circle. `mod.rs`, which joins them, is not
/// counted.
const WITHOUT_CIRCLES: &[&str] = &["comm", "environment"];

/// What breaks a rule and is allowed: (the importing file or folder, the imported module, why).
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("src/engine/mod.rs", "context", "an engine makes its contexts"),
    ("src/comm/mod.rs", "comm::nccl", "makes communicators"),
    ("src/comm/builder.rs", "comm::host", "makes communicators"),
    ("src/comm/builder.rs", "comm::nccl", "makes communicators"),
    ("src/comm/create.rs", "comm::nccl", "makes communicators"),
    ("src/comm/nccl/bootstrap.rs", "comm::host", "a control communicator beside NCCL"),
    ("src/diagnosis", "comm::host", "shows what the backend needs of the machine"),
    ("src/diagnosis", "comm::nccl", "shows what the backend needs of the machine"),
    ("src/environment/agreement.rs", "comm::nccl", "ranks agree on whether they can use it"),
    ("src/environment/builder.rs", "comm::nccl", "brings the NcclId to every rank"),
    ("src/tensor_dict", "comm::host", "asks whether there is memory for what arrives"),
];

/// A module, and what it names.
struct Module {
    path: String,
    file: String,
    references: Vec<Reference>,
}

/// One import, with both modules as `comm::host::arena`.
struct Import {
    from: String,
    to: String,
    file: String,
    line: usize,
}

/// The name of the module in a file: `comm::host::arena`; empty for `lib.rs`.
fn module_of(file: &str) -> String {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs").replace('/', "::");
    let path = path.strip_suffix("::mod").unwrap_or(&path);
    if path == "lib" { String::new() } else { path.to_owned() }
}

/// Whether a module is `folder` or inside it.
fn is_within(module: &str, folder: &str) -> bool {
    module.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn top(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

fn modules() -> Vec<Module> {
    let module = |path: &Path| {
        let file = shown(path);
        let name = module_of(&file);
        let segments: Vec<String> = name.split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect();
        Module { path: name, references: references(&read(path), &segments), file }
    };
    files_below("src", &["rs"]).iter().map(|path| module(path)).collect()
}

/// The module that defines an item. `comm` exports `NcclId`, and `comm::nccl::id` defines it.
fn home_of(mut path: Vec<String>, modules: &[Module]) -> String {
    for _ in 0..8 {
        let is_module = |len: &usize| modules.iter().any(|module| module.path == path[..*len].join("::"));
        let len = (0..=path.len()).rev().find(is_module).unwrap_or(0);
        let module = path[..len].join("::");
        let Some(name) = path.get(len) else { return module };
        let exported =
            modules.iter().filter(|other| other.path == module).flat_map(|other| &other.references).find(|reference| {
                reference.is_exported && reference.path.last() == Some(name) && reference.path != path
            });
        match exported {
            Some(reference) => path = reference.path.clone(),
            None => return module,
        }
    }
    path.join("::")
}

/// All imports between modules. `lib.rs` only exports, so its own are not counted.
fn imports() -> Vec<Import> {
    let modules = modules();
    let mut imports = Vec::new();
    for module in modules.iter().filter(|module| !module.path.is_empty()) {
        for reference in &module.references {
            let (from, to) = (module.path.clone(), home_of(reference.path.clone(), &modules));
            // Exported macros are at the root.
            if to.is_empty() {
                continue;
            }
            imports.push(Import { from, to, file: module.file.clone(), line: reference.line });
        }
    }
    imports
}

/// Why an import breaks a rule, if it does.
fn mistake(import: &Import) -> Option<String> {
    let Import { from, to, .. } = import;
    let row = |module: &str| LAYERS.iter().position(|row| row.contains(&top(module)));
    if let (Some(own), Some(other)) = (row(from), row(to))
        && top(from) != top(to)
        && other >= own
    {
        return Some(format!("{} does not stand below {} in LAYERS", top(to), top(from)));
    }
    let backend = BACKENDS.iter().find(|backend| is_within(to, backend) && !is_within(from, backend))?;
    Some(format!("only {backend} itself names that backend"))
}

/// The exception that allows an import.
fn exception(import: &Import) -> Option<usize> {
    let is_in = |file: &str| Path::new(&import.file).starts_with(file);
    EXCEPTIONS.iter().position(|(from, to, _)| is_in(from) && is_within(&import.to, to))
}

/// The module of a folder that a path is in: of `comm` and `comm::host::arena` it is `comm::host`.
fn sibling<'a>(module: &'a str, folder: &str) -> Option<&'a str> {
    let name = top(module.strip_prefix(folder)?.strip_prefix("::")?);
    Some(&module[..folder.len() + 2 + name.len()])
}

/// Those of the imports that are part of a circle in a folder.
fn in_circles<'a>(imports: &[&'a Import], folder: &str) -> Vec<&'a Import> {
    let edge = |import: &&'a Import| {
        let (from, to) = (sibling(&import.from, folder)?, sibling(&import.to, folder)?);
        (from != to).then_some((from, to, *import))
    };
    let edges: Vec<(&str, &str, &Import)> = imports.iter().filter_map(edge).collect();
    // An edge is in a circle if its end leads to its beginning.
    let leads = |start: &str, end: &str| {
        let (mut reached, mut open) = (BTreeSet::from([start]), vec![start]);
        while let Some(module) = open.pop() {
            open.extend(
                edges.iter().filter(|(from, ..)| *from == module).map(|(_, to, _)| *to).filter(|to| reached.insert(to)),
            );
        }
        reached.contains(end)
    };
    edges.iter().filter(|(from, to, _)| leads(to, from)).map(|(.., import)| *import).collect()
}

#[test]
fn imports_point_down() {
    let imports = imports();
    let tops: BTreeSet<&str> = imports.iter().flat_map(|import| [top(&import.from), top(&import.to)]).collect();
    let unknown = tops.into_iter().filter(|module| !LAYERS.concat().contains(module));
    let mut mistakes: Vec<String> = unknown.map(|module| format!("{module} is in no row of LAYERS")).collect();
    let mut needed = BTreeSet::new();
    let mut judge = |import: &Import, rule: String| match exception(import) {
        Some(index) => drop(needed.insert(index)),
        None => {
            let Import { from, to, file, line } = import;
            mistakes.push(format!("{file}:{line}: {from} imports {to}: {rule}"));
        }
    };
    for import in &imports {
        if let Some(rule) = mistake(import) {
            judge(import, rule);
        }
    }
    for folder in WITHOUT_CIRCLES {
        let all: Vec<&Import> = imports.iter().collect();
        let rest: Vec<&Import> = imports.iter().filter(|import| exception(import).is_none()).collect();
        for import in in_circles(&rest, folder) {
            judge(import, format!("a circle in {folder}"));
        }
        // An exception is needed if the folder has a circle without it.
        for import in in_circles(&all, folder).into_iter().filter(|import| exception(import).is_some()) {
            judge(import, String::new());
        }
    }
    for (index, (from, to, _)) in EXCEPTIONS.iter().enumerate() {
        if !needed.contains(&index) {
            mistakes.push(format!("the exception for {from} and {to} is not needed any more"));
        }
    }
    mistakes.dedup();
    assert_none(mistakes);
}

#[test]
fn wrong_imports_are_found() {
    let import =
        |from: &str, to: &str| Import { from: from.to_owned(), to: to.to_owned(), file: String::new(), line: 1 };
    let mistake_of = |from, to| mistake(&import(from, to));
    assert_eq!(mistake_of("stream::launch", "cuda::stream"), None);
    assert_eq!(mistake_of("cuda::graph", "cuda::stream"), None);
    assert_eq!(mistake_of("cuda", "stream::work").as_deref(), Some("stream does not stand below cuda in LAYERS"));
    assert_eq!(mistake_of("util", "cuda").as_deref(), Some("cuda does not stand below util in LAYERS"));
    assert_eq!(mistake_of("comm::nccl::group", "comm::nccl::route"), None);
    let named = mistake_of("context::run", "comm::nccl::route");
    assert_eq!(named.as_deref(), Some("only comm::nccl itself names that backend"));
    let all =
        [("f::a", "f::b::x"), ("f::b::y", "f::c"), ("f::c", "f::a::z"), ("f::d", "f::a"), ("f", "f::a"), ("g", "f")];
    let all = all.map(|(from, to)| import(from, to));
    let circle: Vec<&str> = in_circles(&all.iter().collect::<Vec<_>>(), "f").iter().map(|i| i.from.as_str()).collect();
    assert_eq!(circle, ["f::a", "f::b::y", "f::c"]);
}

#[test]
fn an_item_is_in_the_module_that_defines_it() {
    let modules = modules();
    let home = |path: &str| home_of(path.split("::").map(str::to_owned).collect(), &modules);
    assert_eq!(home("Stream"), "stream");
    assert_eq!(home("stream::EnqueueError"), "stream::work");
    assert_eq!(home("util::lock"), "util");
    assert_eq!(home("cuda::CudaStream::new"), "cuda::stream");
}
