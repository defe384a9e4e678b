//! Compares the header with the functions in `bindings/capi/src/`, since both are written by hand.
//! bindgen reads the header, syn reads `bindings/capi/src/`. bindgen needs libclang, in a standard
//! place or in the folder that the environment variable `LIBCLANG_PATH` names.

mod mpi;
mod nccl;
mod source;

#[path = "../../../shared/header.rs"]
mod declared;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use source::Source;

/// The header's structures, and their names in Rust.
const STRUCTURES: [(&str, &str); 13] = [
    ("dcl_dims", "CDims"),
    ("dcl_plugin_tensor", "CPluginTensor"),
    ("dcl_plugin", "CPlugin"),
    ("dcl_plugin_creator", "CPluginCreator"),
    ("dcl_execution_context_options", "CExecutionContextOptions"),
    ("dcl_environment_config", "CEnvironmentConfig"),
    ("dcl_environment_info", "CEnvironmentInfo"),
    ("dcl_bootstrap_config", "CBootstrapConfig"),
    ("dcl_communicator_options", "CCommunicatorOptions"),
    ("dcl_message", "CMessage"),
    ("dcl_dict_tensor", "CDictTensor"),
    ("dcl_broadcast_options", "CBroadcastOptions"),
    ("dcl_layer_time", "CLayerTime"),
];

/// Enumerators whose Rust name is not the header's name in another case.
const RENAMED: [(&str, &str); 5] = [
    ("DCL_DATA_TYPE_FLOAT", "Float32"),
    ("DCL_DATA_TYPE_HALF", "Float16"),
    ("DCL_DATA_TYPE_FP8", "Float8E4M3"),
    ("DCL_DATA_TYPE_BF16", "Bfloat16"),
    ("DCL_DATA_TYPE_FP8_E5M2", "Float8E5M2"),
];

/// Numbers that only the C ABI has. Programs in C test what they do. The first three groups are
/// TensorRT's.
const NUMBERS: [(&str, i64); 21] = [
    ("DCL_TENSOR_IO_MODE_NONE", 0),
    ("DCL_TENSOR_IO_MODE_INPUT", 1),
    ("DCL_TENSOR_IO_MODE_OUTPUT", 2),
    ("DCL_OPT_PROFILE_MIN", 0),
    ("DCL_OPT_PROFILE_OPT", 1),
    ("DCL_OPT_PROFILE_MAX", 2),
    ("DCL_SEVERITY_ERROR", 1),
    ("DCL_SEVERITY_WARNING", 2),
    ("DCL_SEVERITY_INFO", 3),
    ("DCL_SEVERITY_VERBOSE", 4),
    ("DCL_IN_PLACE_NEVER", 0),
    ("DCL_IN_PLACE_SAME_ADDRESS", 1),
    ("DCL_IN_PLACE_INPUT_AT", 2),
    ("DCL_IN_PLACE_OUTPUT_AT", 3),
    ("DCL_IN_PLACE_UNUSED", 4),
    ("DCL_TIMEOUT_DEFAULT", -1),
    ("DCL_NO_COLOR", -1),
    ("DCL_ANY_SOURCE", -1),
    ("DCL_DEVICE_HOST", -1),
    ("DCL_DEVICE_UNSET", -2),
    ("DCL_OPAQUE_TYPE", -1),
];

/// The parts of the standard headers that the headers need. With them a libclang without any
/// headers suffices.
const STANDARD: [(&str, &str); 2] = [
    ("stddef.h", "typedef __SIZE_TYPE__ size_t;\n#define NULL ((void *)0)\n"),
    (
        "stdint.h",
        "typedef signed char int8_t;\ntypedef short int16_t;\ntypedef unsigned char uint8_t;\ntypedef unsigned short uint16_t;\n\
         typedef int int32_t;\ntypedef unsigned uint32_t;\ntypedef long int64_t;\n\
         typedef unsigned long uint64_t;\n",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library's own header.
fn header() -> Option<Source> {
    bindings(&root().join("include/distcollective.h"), &STANDARD, "(dcl|DCL)_.*")
}

/// The items of a header in Rust, by bindgen, and what it needs of other headers. `None` if there
/// is no libclang; CI requires it.
fn bindings(header: &Path, others: &[(&str, &str)], items: &str) -> Option<Source> {
    if let Err(error) = clang_sys::load() {
        assert!(std::env::var("DCL_REQUIRE_PEERS").is_err(), "libclang cannot be loaded: {error}");
        eprintln!("skipped: libclang cannot be loaded: {error}");
        return None;
    }
    let name = header.file_stem().expect("a file");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_header").join(name);
    fs::create_dir_all(&folder).expect("a folder");
    for (name, text) in others {
        fs::write(folder.join(name), text).expect("a file");
    }
    let bindings = bindgen::builder()
        .header(header.to_str().expect("text"))
        .clang_args(["-nostdinc", "-I", folder.to_str().expect("text")])
        .allowlist_item(items)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .generate()
        .expect("the header can be read");
    Some(Source::parse([bindings.to_string()]))
}

/// The Rust code behind the header.
fn code() -> Source {
    let mut files: Vec<PathBuf> = fs::read_dir(root().join("bindings/capi/src"))
        .expect("bindings/capi/src")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.extend(
        [
            "crates/elements/src/data_type.rs",
            "crates/elements/src/element/operation.rs",
            "crates/elements/src/reduce_operation.rs",
            "crates/elements/src/shape.rs",
            "crates/elements/src/wire_type.rs",
            "src/collective/determinism.rs",
            "src/collective/operation.rs",
            "src/comm/message.rs",
            "src/comm/nccl_id.rs",
        ]
        .map(|f| root().join(f)),
    );
    let mut code = Source::parse(files.iter().map(|file| fs::read_to_string(file).expect("text")));
    for (c, rust) in STRUCTURES {
        code.rename(rust, c);
    }
    code
}

#[test]
fn functions_are_the_same() {
    let Some(header) = header() else { return };
    let (header, code) = (header.functions(), code().functions());
    let names = |functions: &BTreeMap<String, String>| functions.keys().cloned().collect::<BTreeSet<_>>();
    assert!(header.len() > 100, "{header:?}");
    assert_eq!(names(&header).difference(&names(&code)).collect::<Vec<_>>(), [""; 0], "declared, not defined");
    assert_eq!(names(&code).difference(&names(&header)).collect::<Vec<_>>(), [""; 0], "defined, not declared");
    let differing: Vec<_> = header.iter().filter(|(name, signature)| code[*name] != **signature).collect();
    let differing: Vec<_> =
        differing.iter().map(|(name, c)| format!("{name}: {c}\n in Rust: {}", code[*name])).collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    // The functions that other tests read as text are the same.
    let as_text: BTreeSet<String> = declared::functions().into_iter().map(|function| function.name).collect();
    assert_eq!(as_text, names(&header));
}

#[test]
fn structures_are_the_same() {
    let Some(header) = header() else { return };
    let code = code();
    let declared: BTreeSet<&str> = header.structures().filter(|name| !header.is_opaque(name)).collect();
    assert_eq!(declared, STRUCTURES.iter().map(|(c, _)| *c).collect());
    for (name, _) in STRUCTURES {
        let fields = header.fields(name);
        assert_eq!(fields, code.fields(name), "{name}");
        // clang computed the header's layout; repr(C) gives that of the Rust fields.
        assert_eq!(header.asserted_layout(name), code.layout(name), "{name}");
    }
}

#[test]
fn numbers_are_the_same() {
    let Some(header) = header() else { return };
    let code = code();
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("text");
    let version = manifest.split("\nversion = \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a version");
    let version: Vec<i64> = version.split('.').map(|part| part.parse().expect("a number")).collect();
    let mut all = 0;
    for (name, number) in header.constants() {
        let renamed = RENAMED.iter().find(|(c, _)| *c == name).map(|(_, rust)| (*rust).to_owned());
        let of = |prefix: &str| name.strip_prefix(prefix);
        let expected = if let Some((_, number)) = NUMBERS.iter().find(|(c, _)| *c == name) {
            *number
        } else if let Some(status) = of("DCL_STATUS_") {
            code.constant("Status", status)
        } else if let Some(data_type) = of("DCL_DATA_TYPE_") {
            code.constant("DataType", &renamed.unwrap_or_else(|| camel(data_type)))
        } else if let Some(operation) = of("DCL_COLLECTIVE_") {
            code.constant("CollectiveOperation", &camel(operation))
        } else if name == "DCL_REDUCE_NONE" {
            code.constant("ReduceOperation", "NONE_NUMBER")
        } else if let Some(reduce_op) = of("DCL_REDUCE_") {
            code.constant("ReduceOperation", &camel(reduce_op))
        } else if let Some(operation) = of("DCL_ELEMENTWISE_") {
            code.constant("ElementWiseOperation", &camel(operation))
        } else if let Some(determinism) = of("DCL_DETERMINISM_") {
            code.constant("Determinism", &camel(determinism))
        } else if name == "DCL_WIRE_TYPE_NONE" {
            code.constant("WireType", "NONE_NUMBER")
        } else if let Some(wire_type) = of("DCL_WIRE_TYPE_") {
            code.constant("WireType", &camel(wire_type))
        } else {
            match name {
                "DCL_VERSION_MAJOR" => version[0],
                "DCL_VERSION_MINOR" => version[1],
                "DCL_VERSION_PATCH" => version[2],
                "DCL_VERSION" => version[0] * 10000 + version[1] * 100 + version[2],
                "DCL_MAX_PLUGIN_TENSORS" => code.constant("", "MAX_TENSORS"),
                "DCL_MAX_DIMS" => code.constant("", "MAX_DIMS"),
                "DCL_MAX_TAG" => code.constant("", "MAX_TAG"),
                "DCL_NCCL_ID_BYTES" => code.constant("NcclId", "BYTE_LEN"),
                _ => panic!("{name} has no counterpart in Rust"),
            }
        };
        assert_eq!(number, expected, "{name}");
        all += 1;
    }
    // In the other direction: a number that Rust has and the header lacks is an error.
    for (group, prefix) in [
        ("Status", "DCL_STATUS_"),
        ("DataType", "DCL_DATA_TYPE_"),
        ("CollectiveOperation", "DCL_COLLECTIVE_"),
        ("ReduceOperation", "DCL_REDUCE_"),
        ("ElementWiseOperation", "DCL_ELEMENTWISE_"),
        ("Determinism", "DCL_DETERMINISM_"),
        ("WireType", "DCL_WIRE_TYPE_"),
    ] {
        let declared: BTreeSet<i64> =
            header.constants().filter(|(name, _)| name.starts_with(prefix)).map(|(_, number)| number).collect();
        assert_eq!(declared, code.constants_of(group), "{group}");
    }
    assert!(all > 60, "{all} constants");
}

/// `ALL_REDUCE` as `AllReduce`.
fn camel(name: &str) -> String {
    let word = |word: &str| word[..1].to_owned() + &word[1..].to_ascii_lowercase();
    name.split('_').map(word).collect()
}

#[test]
fn every_description_ends_with_a_tag() {
    for function in declared::functions() {
        let comment = function.comment.unwrap_or_else(|| panic!("{} has no comment directly before it", function.name));
        let tag = comment.rsplit_once(" [").and_then(|(_, tag)| tag.strip_suffix(']')).unwrap_or_default();
        let (waits, threads) = tag.split_once(", ").unwrap_or_default();
        assert!(["local", "waits", "collective"].contains(&waits), "{}: {comment}", function.name);
        assert!(["shared", "exclusive"].contains(&threads), "{}: {comment}", function.name);
        let takes_handle = function.parameters.first().is_some_and(|first| {
            first.c_type.ends_with("_t *")
                && declared::TEXT.contains(&format!("typedef struct {}", &first.c_type[..first.c_type.len() - 4]))
        });
        assert!(threads == "shared" || takes_handle, "{}: exclusive of what?", function.name);
        assert!(!function.name.ends_with("_free") || tag == "local, shared", "{}: any thread may free", function.name);
    }
}

#[test]
fn every_type_has_a_comment() {
    for declaration in declared::declarations() {
        let text = &declaration.text;
        let is_handle = text.starts_with("typedef struct") && !text.contains('{');
        // The comment stands at the type, which precedes its enumerators.
        if !is_handle && !text.starts_with("enum") {
            assert!(declaration.comment.is_some(), "{text} has no comment directly before it");
        }
    }
}

#[test]
fn the_header_for_cpp_has_every_function() {
    let text = fs::read_to_string(root().join("include/distcollective.hpp")).expect("include/distcollective.hpp");
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let missing: Vec<String> =
        declared::functions().into_iter().map(|f| f.name).filter(|name| !words.contains(name.as_str())).collect();
    assert_eq!(missing, [""; 0]);
}
