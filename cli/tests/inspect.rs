//! `distcollective inspect`, and what shells and `man` know of the program.

mod json;

use std::path::{Path, PathBuf};
use std::process::Command;

use distcollective::network::{Plugin, PluginCall, Shuffle};
use distcollective::{DataType, DistCollective, Network, Rank, ReduceOperation, Result};
use test_support::{has, timed};

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// A file of one test.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The output of a command that succeeds, and writes no error.
fn succeeds(arguments: &[&str]) -> String {
    let (output, text) = test_support::run(timed(DISTCOLLECTIVE).args(arguments));
    assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {text}");
    text
}

/// The error of a command that fails with code 1 and writes one line.
fn fails(arguments: &[&str]) -> String {
    let (output, text) = test_support::run(timed(DISTCOLLECTIVE).args(arguments));
    assert!(output.status.code() == Some(1) && text.lines().count() == 1, "{arguments:?}: {text}");
    text
}

/// Writes a plan with two collectives.
fn plan(name: &str) -> Result<String> {
    let mut network = Network::new();
    let x = network.add_input("the \"input\"", DataType::Float32, [4, 8])?;
    let x = network.add(DistCollective::reduce(ReduceOperation::Sum, Rank(1)).nb_rank(2).named("sum\\all"), x)?;
    let h = network.add_shuffle(x, Shuffle::transpose([1, 0]))?;
    let y = network.add(DistCollective::all_gather().group([Rank(1), Rank(0)]).named("gather"), h)?;
    network.mark_output(x, "partial")?;
    network.mark_output(y, "y")?;
    let file = file(name);
    network.build()?.save(&file)?;
    Ok(file.to_str().expect("UTF-8").to_owned())
}

#[test]
fn a_plan_is_shown_as_text_as_json_and_as_a_graph() {
    let plan = plan("inspect.plan").expect("a plan");
    let text = succeeds(&["inspect", &plan]);
    assert!(text.contains("gather (all_gather) among 2 ranks of [[1, 0]]: "), "{text}");
    let json = json::read(&succeeds(&["inspect", &plan, "--json"]));
    assert_eq!(json["layers"][2]["collective"]["groups"], serde_json::json!([[1, 0]]));

    let dot = succeeds(&["inspect", &plan, "--dot"]);
    let fingerprint = json["fingerprint"].as_str().expect("a text");
    assert!(dot.starts_with(&format!("digraph \"engine {fingerprint}\" {{\n")) && dot.ends_with("}\n"), "{dot}");
    for statement in [
        r#"input0 [shape=ellipse, label="the \"input\""]"#,
        r#"layer0 [label="sum\\all\nreduce among 2 ranks, sum, root 1", style=filled, fillcolor=lightgrey]"#,
        r#"input0 -> layer0 [label="the \"input\"\nfloat32 [4, 8]"]"#,
        r#"layer0 -> layer1 [label="partial\nfloat32 [4, 8]", style=dashed]"#,
        r#"layer2 [label="gather\nall_gather among 2 ranks of [[1, 0]]", style=filled, fillcolor=lightgrey]"#,
        r#"output3 [shape=ellipse, label="y"]"#,
    ] {
        assert_eq!(dot.matches(&format!("  {statement};\n")).count(), 1, "{statement}\n{dot}");
    }
    // Two outputs and three inputs of layers.
    assert_eq!(dot.matches(" -> ").count(), 5, "{dot}");
}

#[test]
fn a_file_that_is_no_plan_is_one_line_with_its_name() {
    let junk = file("junk.plan");
    std::fs::write(&junk, "hello").expect("a file");
    let junk = junk.to_str().expect("UTF-8");
    let error = fails(&["inspect", junk]);
    assert!(error.starts_with("error: ") && error.contains(junk) && error.contains("plan"), "{error}");
    assert!(fails(&["inspect", "absent.plan"]).contains("absent.plan cannot be read: No such file"));
}

/// A plan may come from anyone.
#[test]
fn names_in_a_plan_cannot_steer_a_terminal_or_forge_lines() -> Result<()> {
    const HOSTILE: &str = "a\x1b[2J\nwarning: \u{202e}b";
    const SHOWN: &str = r"a\u{1b}[2J\nwarning: \u{202e}b";
    let name = |part: &str| format!("{part} {HOSTILE}");
    let mut network = Network::new();
    let x = network.add_input(&name("x"), DataType::Float32, [4, 8])?;
    let sum = DistCollective::reduce(ReduceOperation::Sum, Rank(1)).nb_rank(2).named(name("layer"));
    let h = network.add(sum, x)?;
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2).named(name("next")), h)?;
    network.mark_output(y, &name("y"))?;
    let file = file("hostile.plan");
    network.build()?.save(&file)?;
    let plan = file.to_str().expect("UTF-8");
    let text = succeeds(&["inspect", plan]);
    for part in ["x", "layer", "next", "y"] {
        assert!(text.contains(&format!("{part} {SHOWN}")), "{part}: {text:?}");
    }
    let dot = succeeds(&["inspect", plan, "--dot"]);
    assert!(dot.contains(&format!("label=\"layer {}", SHOWN.replace('\\', "\\\\"))), "{dot}");
    for shown in [text, dot, succeeds(&["inspect", plan, "--json"])] {
        assert!(!shown.contains(['\x1b', '\u{202e}']) && !shown.contains("\nwarning: \\u"), "{shown:?}");
    }
    Ok(())
}

/// The limit is for a program that would take all memory.
#[test]
fn what_has_no_end_is_refused_at_its_beginning() {
    let script = format!("ulimit -v 2000000; exec {DISTCOLLECTIVE} inspect /dev/zero");
    let (output, text) = test_support::run(timed("sh").args(["-c", &script]));
    let says = "error: plan /dev/zero: these bytes are no distcollective plan: they begin with [00, 00, 00, 00, 00, 00, 00, 00]";
    assert!(output.status.code() == Some(1) && text.starts_with(says), "{text}");
}

/// A plugin that this program does not have.
#[derive(Debug)]
struct Norm;

impl Plugin for Norm {
    fn type_name(&self) -> &str {
        "norm"
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        Ok(())
    }

    fn serialize(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

#[test]
fn a_plugin_that_is_not_there_is_an_unknown_layer() -> Result<()> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [4, 8])?;
    let h = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2).named("sum"), x)?;
    let y = network.add_plugin("normed", Norm, &[h])?;
    network.mark_output(y, "y")?;
    let (file, engine) = (file("plugin.plan"), network.build()?);
    engine.save(&file)?;
    let plan = file.to_str().expect("UTF-8");
    let text = succeeds(&["inspect", plan]);
    let lines = [
        &format!("engine {}", engine.fingerprint()),
        "  x            float32 [4, 8]",
        "  y            float32",
        "    0  sum (all_reduce) among 2 ranks, sum: x -> sum.output0",
        "    1  normed (norm, unknown plugin): sum.output0 -> y",
    ];
    for line in lines {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.ends_with("known, and rules were not checked\n") && !text.contains("memory\n"), "{text}");
    let json = json::read(&succeeds(&["inspect", plan, "--json"]));
    let unknown = |step: usize| json["layers"][step]["unknown"].as_bool();
    assert_eq!((unknown(0), unknown(1), &json["memory"]), (Some(false), Some(true), &serde_json::Value::Null));
    let dot = succeeds(&["inspect", plan, "--dot"]);
    assert!(dot.contains("layer1 [label=\"normed\\nnorm, unknown plugin\"]") && dot.ends_with("}\n"), "{dot}");
    Ok(())
}

#[test]
fn output_that_is_cut_off_ends_the_program_silently() {
    let plan = plan("head.plan").expect("a plan");
    for command in [&format!("inspect {plan}"), "completions bash", "man"] {
        // The reader closes the pipe before the program writes.
        let script = format!("{{ sleep 0.1; {DISTCOLLECTIVE} {command}; echo $? >&2; }} | exec true");
        let (_, text) = test_support::run(timed("sh").args(["-c", &script]));
        // As SIGPIPE ends other programs, and without a message.
        assert_eq!(text, "141\n", "{command}");
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let script = file("completions.bash");
    std::fs::write(&script, succeeds(&["completions", "bash"])).expect("a file");
    let complete = |words: &str| {
        let words = format!("COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))");
        let call = "_distcollective distcollective \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo ${COMPREPLY[@]}";
        let bash = format!("source {}; complete -p distcollective >&2; {words}; {call}", script.display());
        let output = timed("bash").args(["-c", &bash]).output().expect("bash");
        assert!(output.stderr.starts_with(b"complete "), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(complete("distcollective ins"), "inspect\n");
    assert_eq!(complete("distcollective run --ran"), "--ranks\n");
    assert_eq!(complete("distcollective run --reduce-op m"), "max min\n");
    assert_eq!(complete("distcollective bench --dtype bf"), "bfloat16\n");
    for shell in ["zsh", "fish"] {
        assert!(succeeds(&["completions", shell]).contains("reduce-op"), "{shell}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = file("man");
    std::fs::create_dir_all(&folder).expect("a folder");
    succeeds(&["man", "--directory", folder.to_str().expect("UTF-8")]);
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
    assert_eq!(page("distcollective.1"), succeeds(&["man"]));
    let help = succeeds(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.contains(&"inspect"), "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        let reference = format!("distcollective\\-{}(1)", command.replace('-', "\\-"));
        assert!(page("distcollective.1").contains(&reference), "{command}");
        let page = page(&format!("distcollective-{command}.1"));
        assert!(page.contains(".SH OPTIONS") && page.contains(".SH \"EXIT STATUS\"\n.nf\n  0    "), "{command}");
        let help = succeeds(&[command, "--help"]);
        assert!(help.contains("Example: distcollective ") && help.contains("\nExit status:\n  0    "), "{help}");
    }
    assert!(!page("distcollective.1").contains("help(1)"));
    let error = fails(&["man", "--directory", "/nonexistent"]);
    assert!(error.contains("the manual cannot be written into /nonexistent: "), "{error}");
}

/// What the program writes on a terminal.
fn on_terminal(command: &str, variables: &[(&str, &str)]) -> String {
    let mut script = Command::new("timeout");
    script.args(["9", "script", "-qec", &format!("{DISTCOLLECTIVE} {command}"), "/dev/null"]);
    script.env_remove("NO_COLOR").env("TERM", "xterm").envs(variables.iter().copied());
    test_support::run(&mut script).1
}

#[test]
fn colours_are_for_terminals() {
    if !has("script") {
        return;
    }
    const RED: &str = "\x1b[1m\x1b[31merror:\x1b[0m";
    let fault = "inspect absent.plan";
    let shown = on_terminal(fault, &[]);
    assert!(shown.contains(RED), "{shown:?}");
    assert!(on_terminal("--help", &[]).contains("\x1b["));
    assert!(!on_terminal("--help", &[("NO_COLOR", "1")]).contains('\x1b'));
    assert!(on_terminal(fault, &[("NO_COLOR", "1")]).starts_with("error: "));
    assert!(fails(&["inspect", "absent.plan"]).starts_with("error: "));
}
