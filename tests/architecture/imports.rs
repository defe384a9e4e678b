//! Imports point down: a module uses only what stands below it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::parse::{Reference, references};
use crate::{assert_none, files_below, read, read_without_tests, shown};

/// The modules of the library, the lowest first. A module imports only from rows that come before
/// its own.
const LAYERS: &[&[&str]] = &[
    // Values, and what every module may use.
    &["sync"],
    &["util"],
    &["framing"],
    &["element", "moved_type"],
    &["collective"],
    // Memory, devices, and where work runs.
    &["cuda", "issue_order"],
    &["memory", "stream"],
    &["executor"],
    // Communicators.
    &["handshake", "mpi"],
    &["comm"],
    // What uses communicators.
    &["dist_collective", "environment", "system"],
    &["network", "tensor_dict"],
    &["engine"],
    &["context"],
    // Tests of the whole library.
    &["backend_contract"],
];

/// Only the folder of a backend names that backend. To all others it is a `dyn Backend`, except to
/// the cluster backend, which is made of the host backend.
const BACKENDS: &[&str] = &["comm::host", "comm::nccl", "comm::cluster"];

/// Folders whose modules do not import each other in a circle. `mod.rs`, which joins them, is not
/// counted.
const WITHOUT_CIRCLES: &[&str] = &["comm", "environment"];

/// What breaks a rule and is allowed: (the importing file or folder, the imported module, why).
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("src/comm/create.rs", "comm::host", "makes communicators"),
    ("src/comm/create.rs", "comm::nccl", "makes communicators"),
    ("src/comm/create.rs", "comm::cluster", "makes communicators"),
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

/// The name of the module in a file of a package's sources: `comm::host::arena`; empty for `lib.rs`
/// and `main.rs`.
fn module_of(file: &str, sources: &str) -> String {
    let path = file.strip_prefix(sources).unwrap_or(file).trim_start_matches('/');
    let path = path.trim_end_matches(".rs").replace('/', "::");
    let path = path.strip_suffix("::mod").unwrap_or(&path);
    if ["lib", "main"].contains(&path) { String::new() } else { path.to_owned() }
}

/// Whether a module is `folder` or inside it.
fn is_within(module: &str, folder: &str) -> bool {
    module.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

fn top(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

/// The modules of a package, by the text that `read` gives of each file.
fn modules(sources: &str, read: fn(&Path) -> String) -> Vec<Module> {
    let module = |path: &Path| {
        let file = shown(path);
        let name = module_of(&file, sources);
        let segments: Vec<String> = name.split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect();
        Module { path: name, references: references(&read(path), &segments), file }
    };
    files_below(sources, &["rs"]).iter().map(|path| module(path)).collect()
}

/// The module that defines an item. `comm` exports `NcclId`, and `comm::nccl_id` defines it.
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
fn imports(modules: &[Module]) -> Vec<Import> {
    let mut imports = Vec::new();
    for module in modules.iter().filter(|module| !module.path.is_empty()) {
        for reference in &module.references {
            let (from, to) = (module.path.clone(), home_of(reference.path.clone(), modules));
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
    if matches!(to.as_str(), "comm::host" | "comm::host::backend") && is_within(from, "comm::cluster") {
        return None;
    }
    Some(format!("only {backend} itself names that backend"))
}

/// The exception that allows an import.
fn exception(import: &Import) -> Option<usize> {
    let is_in = |file: &str| Path::new(&import.file).starts_with(file);
    EXCEPTIONS.iter().position(|(from, to, _)| is_in(from) && is_within(&import.to, to))
}

/// The module of a folder that a path is in: of `comm` and `comm::host::arena` it is `comm::host`.
/// The folder of the topmost modules has no name.
fn sibling<'a>(module: &'a str, folder: &str) -> Option<&'a str> {
    let start = if folder.is_empty() { 0 } else { folder.len() + 2 };
    let rest = module.strip_prefix(folder)?;
    let rest = if folder.is_empty() { rest } else { rest.strip_prefix("::")? };
    Some(&module[..start + top(rest).len()])
}

/// An import between two modules of a folder, and these modules.
type Edge<'a> = (&'a str, &'a str, &'a Import);

/// The imports between the modules of a folder.
fn edges<'a>(imports: &[&'a Import], folder: &str) -> Vec<Edge<'a>> {
    let edge = |import: &&'a Import| {
        let (from, to) = (sibling(&import.from, folder)?, sibling(&import.to, folder)?);
        (from != to).then_some((from, to, *import))
    };
    imports.iter().filter_map(edge).collect()
}

/// The modules to which imports lead from a module, and itself.
fn reached<'a>(edges: &[Edge<'a>], start: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::from([start]), vec![start]);
    while let Some(module) = open.pop() {
        let next = edges.iter().filter(|(from, ..)| *from == module).map(|(_, to, _)| *to);
        open.extend(next.filter(|to| reached.insert(to)));
    }
    reached
}

/// Those of the imports that are part of a circle in a folder: their end leads to their beginning.
fn in_circles<'a>(imports: &[&'a Import], folder: &str) -> Vec<&'a Import> {
    let edges = edges(imports, folder);
    edges.iter().filter(|(from, to, _)| reached(&edges, to).contains(from)).map(|(.., import)| *import).collect()
}

/// The circles in all folders of a package, without its tests: modules of a folder that import each
/// other, directly or by way of others.
pub fn circles(sources: &str) -> BTreeSet<Vec<String>> {
    let imports = imports(&modules(sources, read_without_tests));
    let all: Vec<&Import> = imports.iter().collect();
    let parents = imports.iter().flat_map(|import| import.from.rmatch_indices("::").map(|(at, _)| &import.from[..at]));
    let folders: BTreeSet<&str> = parents.chain([""]).collect();
    let mut circles = BTreeSet::new();
    for folder in folders {
        let edges = edges(&all, folder);
        for module in edges.iter().map(|(from, ..)| *from).collect::<BTreeSet<_>>() {
            let circle = reached(&edges, module).into_iter().filter(|other| reached(&edges, other).contains(module));
            circles.insert(circle.map(str::to_owned).collect::<Vec<_>>());
        }
    }
    circles.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// How many imports break a rule and are allowed.
pub fn exception_count() -> usize {
    EXCEPTIONS.len()
}

#[test]
fn imports_point_down() {
    let imports = imports(&modules("src", read));
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
    assert_eq!(mistake_of("stream::launched_work", "cuda::stream"), None);
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
    let modules = modules("src", read);
    let home = |path: &str| home_of(path.split("::").map(str::to_owned).collect(), &modules);
    assert_eq!(home("Stream"), "stream");
    assert_eq!(home("stream::EnqueueError"), "stream::work");
    assert_eq!(home("util::lock"), "util");
    assert_eq!(home("cuda::CudaStream::new"), "cuda::stream");
}
