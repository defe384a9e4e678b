//! `distcollective doctor`, on this machine and with test libraries in place of CUDA, NVRTC and
//! NCCL (`tests/fake_gpu`).

mod json;

use std::path::Path;
use std::process::{Command, Output};

use fake_gpu::{Variant, library_dir};
use serde_json::{Value, json};
use test_support::{has, root, run, text, timed};

/// A machine: a set of test libraries, or none, and environment variables. It has nothing else of
/// this process's environment.
#[derive(Clone, Copy)]
struct Machine<'a> {
    libraries: Option<Variant>,
    variables: &'a [(&'a str, &'a str)],
}

impl<'a> Machine<'a> {
    fn new(libraries: Variant, variables: &'a [(&'a str, &'a str)]) -> Self {
        Machine { libraries: Some(libraries), variables }
    }

    /// Runs a command on it.
    fn command(self, words: &[&str]) -> Output {
        let mut command = timed(words[0]);
        command.args(&words[1..]).env_clear().env("PATH", std::env::var_os("PATH").expect("a path"));
        if let Some(variant) = self.libraries {
            command.env("LD_LIBRARY_PATH", library_dir(variant));
        }
        run(command.envs(self.variables.iter().copied())).0
    }

    /// The standard output of a command, which must succeed and write nothing else.
    fn writes(self, words: &[&str]) -> String {
        let output = self.command(words);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{}", text(&output.stdout));
        text(&output.stdout)
    }

    fn text(self) -> String {
        self.writes(&[DISTCOLLECTIVE, "doctor"])
    }

    fn json(self) -> Value {
        let line = self.writes(&[DISTCOLLECTIVE, "doctor", "--json"]);
        assert_eq!(line.lines().count(), 1);
        json::read(&line)
    }
}

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// Whether this machine may have real libraries besides the test libraries.
fn has_real_libraries() -> bool {
    let has = std::env::var_os("DCL_TEST_GPU").is_some();
    if has {
        println!("skipped: this needs a machine without CUDA and NCCL");
    }
    has
}

/// Whether a sentence of a list contains this text.
fn says(sentences: &Value, part: &str) -> bool {
    sentences.as_array().expect("a list").iter().any(|sentence| sentence.as_str().expect("a text").contains(part))
}

/// The problem of a missing fact, which must be its only field.
fn problem(fact: &Value) -> &str {
    assert_eq!(fact.as_object().map(serde_json::Map::len), Some(1), "{fact}");
    fact["problem"].as_str().expect("a problem")
}

#[test]
fn without_gpu_libraries_the_host_backend_is_all_there_is() {
    if has_real_libraries() {
        return;
    }
    let machine = Machine { libraries: None, variables: &[] };
    let found = machine.json();
    for (name, part) in [
        ("driver", "libcuda.so.1, is not to be found"),
        ("nvrtc", "libnvrtc.so.13 or .12, is not to be found"),
        ("nccl", "NCCL is not to be found"),
    ] {
        assert!(problem(&found[name]).contains(part), "{found}");
    }
    assert_eq!(found["gpus"], json!([]));
    let cores = std::thread::available_parallelism().expect("cores").get();
    assert_eq!(found["host"]["cores"], cores);
    assert!(found["host"]["memory_available_bytes"].as_u64() > Some(0) && found["host"]["threads"].as_u64() > Some(0));
    assert_eq!((&found["launch"]["launcher"], &found["nccl_max_world_size"]), (&Value::Null, &json!(0)));
    assert!(says(&found["conclusions"], "\"auto\" is the host backend; NCCL cannot be used: CUDA's driver"), "{found}");

    let text = machine.text();
    for line in [format!("cores       {cores}"), "launcher    none".to_owned()] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(text.contains("\nNCCL        NCCL is not to be found"), "{text}");
}

/// In a user namespace without a map every user reads as the same one.
#[test]
fn a_user_who_may_be_another_one_is_told_before_ranks_are() {
    if !has("unshare") || !Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|s| s.success()) {
        return;
    }
    let machine = Machine { libraries: None, variables: &[] };
    let found = machine.writes(&["unshare", "--user", DISTCOLLECTIVE, "doctor", "--json"]);
    let found = json::read(&found);
    assert!(problem(&found["host"]["processes"]).starts_with("this process's user reads as 65534"), "{found}");
    assert!(says(&found["warnings"], "ranks cannot be processes: this process's user reads as 65534"), "{found}");
}

#[test]
fn the_commit_and_the_target_of_the_build_are_shown() {
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(root()).output();
    let commit = match git {
        Ok(output) if output.status.success() => text(&output.stdout).trim().to_owned(),
        _ => "unknown".to_owned(),
    };
    let machine = Machine { libraries: None, variables: &[] };
    let found = machine.json();
    let target = found["target"].as_str().expect("a text");
    assert_eq!(found["commit"], commit);
    assert!(target.starts_with(std::env::consts::ARCH) && target.contains("linux"), "{target}");
    let text = machine.text();
    for line in [format!("commit      {commit}"), format!("target      {target}")] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn gpus_and_libraries_are_described() {
    let machine = Machine::new(Variant::Current, &[("FAKE_CUDA_DEVICES", "1"), ("FAKE_CUDA_MEMORY", "3221225472")]);
    let found = machine.json();
    assert_eq!(
        found["gpus"],
        json!([{
            "name": "Fake GPU 0",
            "capability": "9.0",
            "memory_bytes": 3_221_225_472u64,
            "bus_id": "0000:01:00.0",
            "multiprocessors": 4,
            "runs_layers": true,
            "reduces_float8": true,
            "kernel_problem": null,
        }])
    );
    for (library, version) in [("driver", "13.0"), ("nvrtc", "13.0"), ("nccl", "2.30.7")] {
        let file = Path::new(found[library]["file"].as_str().expect("a file"));
        let name = file.file_name().expect("a name");
        let expected = library_dir(Variant::Current).join(name).canonicalize().expect("a library");
        assert_eq!((&found[library]["version"], file), (&json!(version), expected.as_path()));
    }
    for (feature, is_there) in [("has_all_to_all", true), ("has_windows", true), ("shares_gpus", false)] {
        assert_eq!(found["nccl"][feature], is_there, "{feature}");
    }
    assert_eq!((&found["nccl_max_world_size"], &found["warnings"]), (&json!(1), &json!([])));

    let text = machine.text();
    let gpu = "GPU 0       Fake GPU 0, 9.0, 3.0 GiB, 4 multiprocessors, 0000:01:00.0; float8 is reduced by NCCL\n";
    assert!(text.contains(gpu) && !text.contains("warning"), "{text}");
    assert!(
        text.contains("libnccl.so.2); all_to_all, gather and scatter native; symmetric windows; one rank a GPU\n"),
        "{text}"
    );
}

#[test]
fn what_a_gpu_can_do_follows_from_its_capability() {
    for (sm, capability, runs_layers, reduces_float8) in
        [("75", "7.5", false, false), ("80", "8.0", true, false), ("89", "8.9", true, false), ("90", "9.0", true, true)]
    {
        let found = Machine::new(Variant::Current, &[("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_SM", sm)]).json();
        for gpu in found["gpus"].as_array().expect("a list") {
            assert_eq!(gpu["capability"], capability);
            assert_eq!((&gpu["runs_layers"], &gpu["reduces_float8"]), (&json!(runs_layers), &json!(reduces_float8)));
        }
        let refused =
            says(&found["warnings"], "layers of several ranks are refused on GPUs 0 and 1: they need compute");
        assert_eq!(refused, !runs_layers, "{found}");
    }
}

#[test]
fn an_old_nccl_is_used_with_detours_and_an_ancient_one_not_at_all() {
    let devices = &[("FAKE_CUDA_DEVICES", "2"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    let old = Machine::new(Variant::Old, devices);
    let found = old.json();
    for feature in ["has_all_to_all", "has_windows", "reduces_float8", "shares_gpus"] {
        assert_eq!(found["nccl"][feature], false, "{feature}");
    }
    assert_eq!((&found["nccl"]["version"], &found["nccl_max_world_size"]), (&json!("2.21.5"), &json!(2)));
    for feature in ["symmetric windows give right results from 2.30.7", "float8 is reduced from 2.24.3"] {
        assert!(says(&found["warnings"], &format!("NCCL 2.21.5: {feature} on; ")), "{found}");
    }
    assert!(old.text().contains("; float8 is reduced by exchange"));
    assert!(old.text().contains("all_to_all, gather and scatter by send and receive; no symmetric windows"));

    let found = Machine::new(Variant::Ancient, devices).json();
    assert_eq!(problem(&found["nccl"]), "libnccl.so.2 is NCCL 2.18.3; 2.19.0 or newer is needed");
    assert!(says(&found["warnings"], "there are 2 GPUs, and no NCCL that can use them"), "{found}");

    // A newer one lets ranks share GPUs if the variable is set.
    let found = Machine::new(Variant::Current, devices).json();
    assert_eq!(found["nccl"]["shares_gpus"], true);
    assert!(says(&found["conclusions"], "which share the 2 GPUs"), "{found}");
}

#[test]
fn gpus_without_nccl_or_nvrtc_are_warned_of() {
    if has_real_libraries() {
        return;
    }
    let found = Machine::new(Variant::NoNccl, &[("FAKE_CUDA_DEVICES", "1")]).json();
    assert!(problem(&found["nccl"]).starts_with("NCCL is not to be found"));
    assert_eq!((&found["gpus"][0]["name"], &found["nccl_max_world_size"]), (&json!("Fake GPU 0"), &json!(0)));
    assert!(says(&found["conclusions"], "\"auto\" is an error, because NCCL cannot be used: NCCL is not"), "{found}");
    assert!(says(&found["warnings"], "there is 1 GPU, and no NCCL that can use it"), "{found}");

    for (sm, lost) in [("80", "bool and float8, Cast"), ("90", "bool, Cast")] {
        let found = Machine::new(Variant::NoNvrtc, &[("FAKE_CUDA_DEVICES", "1"), ("FAKE_CUDA_SM", sm)]).json();
        assert!(problem(&found["nvrtc"]).contains("nvidia-cuda-nvrtc"));
        assert_eq!(found["nccl_max_world_size"], 1);
        let warning = format!("without NVRTC averages of floats, reductions of {lost} and Shuffle layers fail on GPUs");
        assert!(says(&found["warnings"], &warning), "{found}");
    }
}

#[test]
fn a_machine_without_a_gpu_or_with_a_broken_one_is_described() {
    let found = Machine::new(Variant::Current, &[("FAKE_CUDA_DEVICES", "0")]).json();
    // The driver has a version even so.
    assert_eq!(found["driver"]["version"], "13.0");
    assert_eq!(
        (&found["gpus"], &found["nccl_max_world_size"], &found["warnings"]),
        (&json!([]), &json!(0), &json!([]))
    );

    let broken = [("FAKE_CUDA_DEVICES", "3"), ("FAKE_CUDA_FAULTS", "cuDevicePrimaryCtxRetain:2:2")];
    let found = Machine::new(Variant::Current, &broken).json();
    assert_eq!(found["gpus"][2]["name"], "Fake GPU 2");
    assert!(problem(&found["gpus"][1]).contains("cuDevicePrimaryCtxRetain"));
    assert_eq!(found["nccl_max_world_size"], 1);
    assert!(says(&found["warnings"], "GPU 1 cannot be used: cuDevicePrimaryCtxRetain"), "{found}");

    let failing = [("FAKE_CUDA_DEVICES", "1"), ("FAKE_NVRTC", "fail")];
    let found = Machine::new(Variant::Current, &failing).json();
    assert_eq!(found["nvrtc"]["version"], "13.0");
    assert!(found["gpus"][0]["kernel_problem"].as_str().is_some_and(|problem| problem.contains("told to fail")));
    assert!(says(&found["warnings"], "Cast and Shuffle layers fail on GPU 0: nvrtcCompileProgram"), "{found}");
}

#[test]
fn auto_is_the_backend_that_was_said() {
    let few = "the host backend is used: 3 ranks on 2 GPUs: NCCL has one rank a GPU";
    for (variant, nccl_max_world_size, ranks, backend, warning) in [
        (Variant::Current, 2, "2", Some("nccl"), ""),
        (Variant::Current, 2, "3", Some("host"), few),
        (Variant::Old, 2, "2", Some("nccl"), ""),
        (Variant::Previous, 2, "2", Some("nccl"), ""),
        (Variant::Ancient, 0, "2", None, "2.19.0 or newer is needed; the backend \"host\" does the same without GPUs"),
        (Variant::NoDriver, 0, "2", Some("host"), ""),
        (Variant::NoNvrtc, 2, "2", Some("nccl"), ""),
        (Variant::NoNccl, 0, "2", None, "NCCL is not to be found"),
    ] {
        if !matches!(variant, Variant::Current | Variant::Old | Variant::Previous) && has_real_libraries() {
            continue;
        }
        let machine = Machine::new(variant, &[("FAKE_CUDA_DEVICES", "2")]);
        let found = machine.json();
        assert_eq!(found["nccl_max_world_size"], nccl_max_world_size, "{variant:?}");
        assert_eq!(says(&found["conclusions"], "\"auto\" is an error"), backend.is_none(), "{found}");
        let bench = ["bench", "--op", "broadcast", "--max-bytes", "8", "--backend", "auto", "--json", "-n", ranks];
        let output = machine.command(&[&[DISTCOLLECTIVE][..], &bench].concat());
        let said = text(&output.stderr);
        assert!(said.contains(warning) && (warning.is_empty() == said.is_empty()), "{variant:?}: {said}");
        assert_eq!(output.status.success(), backend.is_some(), "{variant:?}");
        if let Some(backend) = backend {
            let line = json::read(text(&output.stdout).lines().next().expect("a line"));
            assert_eq!(line["backend"], backend, "{variant:?}");
        }
    }
    // The driver does not work.
    let broken = Machine::new(Variant::Current, &[("FAKE_CUDA_FAULTS", "cuInit:*:999")]).json();
    assert!(says(&broken["conclusions"], "\"auto\" is an error, because NCCL cannot be used: cuInit"), "{broken}");
    assert!(says(&broken["warnings"], "the GPUs cannot be used: cuInit"), "{broken}");
}

#[test]
fn the_launcher_and_its_variables_are_told_but_no_secret() {
    let launched = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node7"),
        ("MASTER_PORT", "29500"),
        ("DCL_SECRET", "hush"),
        ("NCCL_DEBUG", "WARN"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("HOME", "/nowhere"),
    ];
    let machine = Machine { libraries: None, variables: &launched };
    let found = machine.json();
    assert_eq!(
        found["launch"],
        json!({
            "launcher": "torchrun",
            "rank": 1,
            "world_size": 4,
            "problem": null,
            "mistakes": [],
            "variables": {
                "RANK": "1",
                "WORLD_SIZE": "4",
                "MASTER_ADDR": "node7",
                "MASTER_PORT": "29500",
                "DCL_SECRET": "set, and not shown",
                "NCCL_DEBUG": "WARN",
                "CUDA_VISIBLE_DEVICES": "0",
            },
        })
    );
    let text = machine.text();
    assert!(text.contains("launcher    torchrun: rank 1 of 4\nvariables   CUDA_VISIBLE_DEVICES=0\n"), "{text}");
    assert!(!text.contains("hush") && !found.to_string().contains("hush"));

    let found = Machine { libraries: None, variables: &[("SLURM_PROCID", "0")] }.json();
    assert_eq!((&found["launch"]["launcher"], &found["launch"]["rank"]), (&json!("SLURM"), &Value::Null));
    let problem = "ranks cannot meet as they were launched: launcher SLURM: SLURM_NTASKS is not set";
    assert!(says(&found["warnings"], problem), "{found}");
}

#[test]
fn variables_that_cannot_be_read_are_warned_of() {
    let wrong = [
        ("DCL_TIMEOUT", "0"),
        ("DCL_SLOW_WARNING", "often"),
        ("DCL_LOG", "loud"),
        ("DCL_SECRET", ""),
        ("DCL_RENDEZVOUS_PORT", "http"),
        ("DCL_TIMOUT", "9"),
        ("DCL_JOB_ID", "fine"),
    ];
    let found = Machine { libraries: None, variables: &wrong }.json();
    let expected = json!([
        "DCL_TIMEOUT is \"0\", which is not a number of seconds above 0, such as 60 or 0.5",
        "DCL_SLOW_WARNING is \"often\", which is not a number of seconds; 0 means never",
        "DCL_LOG is \"loud\", which is not one of off, error, warn, info, debug and trace",
        "DCL_RENDEZVOUS_PORT is \"http\", which is not a port",
        "DCL_SECRET is empty; unset it, or give it at least one byte",
        "DCL_TIMOUT is none of this library's variables",
    ]);
    assert_eq!((&found["launch"]["mistakes"], &found["warnings"]), (&expected, &expected));
    // Those of a launcher are told once.
    let launched =
        [("RANK", "0"), ("DCL_RENDEZVOUS_PORT", "http"), ("DCL_LAUNCH_JOBS", "1;"), ("DCL_RESTART_COUNT", "0")];
    let found = Machine { libraries: None, variables: &launched }.json();
    assert_eq!((&found["launch"]["mistakes"], found["warnings"].as_array().map(Vec::len)), (&json!([]), Some(1)));
}

#[test]
fn the_limit_of_open_files_bounds_the_processes() {
    let script = format!("ulimit -n 64 && exec {DISTCOLLECTIVE:?} doctor --json");
    let line = Machine { libraries: None, variables: &[] }.writes(&["sh", "-c", &script]);
    let found = json::read(&line);
    assert_eq!(found["host"]["open_files"], json!({ "soft": 64, "hard": 64 }));
    assert_eq!(found["host"]["processes"], 25);
}

#[test]
fn help_has_an_example_and_nothing_else_is_taken() {
    let machine = Machine { libraries: None, variables: &[] };
    assert!(machine.writes(&[DISTCOLLECTIVE, "doctor", "--help"]).contains("Example: distcollective doctor --json"));
    assert_eq!(machine.command(&[DISTCOLLECTIVE, "doctor", "--fix"]).status.code(), Some(2));
}
