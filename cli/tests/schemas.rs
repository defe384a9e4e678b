//! The schemas of what commands print with `--json`: they refuse what has a member too many or too
//! few. The tests of each command read its JSON with its schema.

mod json;

use distcollective::comm::BackendKind;
use distcollective::network::Shuffle;
use distcollective::{DataType, DistCollective, Network, ReduceOperation};
use serde_json::Value;
use test_support::{Folder, run, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// The objects that each command prints.
fn printed() -> Vec<Value> {
    let folder = Folder::create();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [-1, 2]).expect("an input");
    network.set_optimization_profile(x, [2, 2], [4, 2], [8, 2]).expect("a profile");
    let sum = DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(2).named("sum");
    let h = network.add(sum, x).expect("a layer");
    let h = network.add_shuffle(h, Shuffle::transpose([1, 0])).expect("a layer");
    let y = network.add(DistCollective::all_gather().nb_rank(2), h).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    network.build().and_then(|engine| engine.save(folder.file("m.plan"))).expect("a plan");
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}";
    let npy = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), b"ab"].concat();
    (0..2).for_each(|rank| std::fs::write(folder.file(format!("in{rank}.npy")), &npy).expect("a file"));
    let header = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let tensors = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"ab"].concat();
    std::fs::write(folder.file("m.safetensors"), tensors).expect("a file");
    let commands = [
        "bench -e 8 --batches 1 --op all_to_all,broadcast --json --percentiles 0,100 --explain",
        "broadcast-weights m.safetensors -n 2 --output copy{rank}.safetensors --json",
        "doctor --json",
        "inspect m.plan --json",
        "launch -n 1 --no-prefix -- distcollective env --json",
        "run --op gather --root 1 -n 2 --input in{rank}.npy --output out{rank}.npy --json",
    ];
    let lines = commands.map(|command| {
        let words = command.split(' ').map(|word| if word == "distcollective" { DISTCOLLECTIVE } else { word });
        let (output, text) = run(timed(DISTCOLLECTIVE).args(words).current_dir(folder.path()));
        assert!(output.status.success(), "{command}: {text}");
        text
    });
    lines.concat().lines().map(json::read).collect()
}

/// The paths of all objects in a value, as JSON Pointers.
fn objects(value: &Value, path: String) -> Vec<String> {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    let deeper = below.into_iter().flat_map(|(name, value)| objects(value, format!("{path}/{name}")));
    value.is_object().then(|| path.clone()).into_iter().chain(deeper).collect()
}

/// Whether a member may be missing.
fn is_optional(path: &str, name: &str) -> bool {
    let is_asked_for = ["_path", "_p0_us", "_p100_us"].iter().any(|end| name.ends_with(end));
    let is_of_some_layers = path.starts_with("/layers/") && name == "collective";
    is_asked_for
        || is_of_some_layers
        || path == "/sources"
        || path == "/launch/variables"
        || path.starts_with("/profiles/0")
}

#[test]
fn a_member_too_many_or_too_few_is_refused() {
    let printed = printed();
    let mut count = 0;
    for value in &printed {
        for path in objects(value, String::new()) {
            let mut members = value.pointer(&path).and_then(Value::as_object).expect("an object").clone();
            let mut changed = |members: &serde_json::Map<String, Value>| {
                count += 1;
                let mut value = value.clone();
                *value.pointer_mut(&path).expect("an object") = members.clone().into();
                json::check(&value)
            };
            for name in members.clone().keys().filter(|name| !is_optional(&path, name)) {
                let member = members.remove(name).expect("it is there");
                assert!(changed(&members).is_err(), "{} without {path}/{name}", value["schema"]);
                // Nothing is an array of an array of a text.
                members.insert(name.clone(), serde_json::json!([["planted"]]));
                assert!(changed(&members).is_err(), "{} with another {path}/{name}", value["schema"]);
                members.insert(name.clone(), member);
            }
            members.insert("planted".to_owned(), 7.into());
            assert!(changed(&members).is_err(), "{} with {path}/planted", value["schema"]);
        }
    }
    assert!(count > 200, "{count}");
}

#[test]
fn every_command_with_json_has_a_schema() {
    let printed: Vec<String> =
        printed().iter().map(|value| value["schema"].as_str().expect("a name").to_owned()).collect();
    let (_, help) = run(timed(DISTCOLLECTIVE).arg("--help"));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut count = 0;
    for command in commands.filter_map(|line| line.split_whitespace().next()).filter(|command| *command != "help") {
        let (_, help) = run(timed(DISTCOLLECTIVE).args([command, "--help"]));
        let has_json = help.lines().any(|line| line.trim() == "--json");
        assert_eq!(has_json, printed.contains(&format!("distcollective.{command}/1")), "{command}");
        let (output, _) = run(timed(DISTCOLLECTIVE).args(["schema", command]));
        assert_eq!(output.status.code(), Some(if has_json { 0 } else { 2 }), "{command}");
        count += usize::from(has_json);
    }
    assert_eq!(count, 6);
}

#[test]
fn every_reduction_and_backend_has_its_name_in_the_schemas() {
    let mut count = 0;
    for value in printed() {
        let mut takes = |member: &str, name: &str| {
            let mut other = value.clone();
            other[member] = name.into();
            json::check(&other).unwrap_or_else(|mistakes| panic!("{name}: {mistakes}"));
            count += 1;
        };
        if value.get("reduce_op").is_some() {
            ReduceOperation::ALL.iter().for_each(|reduce_op| takes("reduce_op", reduce_op.name()));
        }
        // Ranks of other commands are threads.
        if ["distcollective.bench/1", "distcollective.env/1"].iter().any(|schema| value["schema"] == *schema) {
            [BackendKind::Host, BackendKind::Nccl, BackendKind::Ucx, BackendKind::Mpi]
                .iter()
                .for_each(|backend| takes("backend", backend.name()));
        }
    }
    assert!(count >= 2 * ReduceOperation::ALL.len() + 2 * 4, "{count}");
}
