//! The split model has the logits of the whole one, between threads and between processes.

use std::process::Command;

use test_support::{product, run, succeed, timed};

const CANDLE_LLAMA: &str = env!("CARGO_BIN_EXE_candle_llama");

/// The tokens that each rank generates, which have to be those of every rank.
fn check(command: &mut Command, ranks: u32) -> Vec<String> {
    let text = succeed(command);
    assert_eq!(text.lines().filter(|line| line.ends_with(" PASSED")).count(), 8 * ranks as usize, "{text}");
    let tokens_of = |rank| {
        let lines = text.lines().filter_map(|line| line.split_once(&format!("Rank {rank} - ")));
        lines.map(|(_, line)| line.split(':').next().expect("a token").to_owned()).collect::<Vec<_>>()
    };
    for rank in 1..ranks {
        assert_eq!(tokens_of(rank), tokens_of(0), "{text}");
    }
    tokens_of(0)
}

#[test]
fn ranks_are_threads_or_processes() {
    let launcher = product("distcollective");
    let tokens = check(timed(CANDLE_LLAMA).args(["--ranks", "1"]), 1);
    assert!(tokens.len() == 8 && tokens[0].starts_with("token 12 is "), "{tokens:?}");
    for ranks in [2, 4] {
        assert_eq!(check(timed(CANDLE_LLAMA).args(["--ranks", &ranks.to_string()]), ranks), tokens);
    }
    for ranks in [1, 2, 4] {
        let launch = ["launch", "-n", &ranks.to_string(), "--", CANDLE_LLAMA];
        assert_eq!(check(timed(&launcher).args(launch), ranks), tokens);
    }
}

#[test]
fn one_rank_has_the_same_bits() {
    let text = succeed(timed(CANDLE_LLAMA).args(["--ranks", "1"]));
    assert!(text.lines().all(|line| line.contains(" by at most 0.0e0 of ")), "{text}");
}

#[test]
fn what_it_cannot_do_is_an_error() {
    for (arguments, error) in [
        (["--ranks", "3"], "layer \"lm_head\" (column-parallel): out_dim is 256, which is not a multiple of 3 ranks"),
        (["--ranks", "8"], "layer \"model.layers.0.self_attn\": kv_heads is 4, which is not a multiple of 8 ranks"),
        (["--ranks", "0"], "a communicator has at least one rank"),
    ] {
        let (output, text) = run(timed(CANDLE_LLAMA).args(arguments));
        assert!(!output.status.success() && text.contains(error), "{arguments:?}: {text}");
    }
}
