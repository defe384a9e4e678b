//! The handler of the log. It is one for the whole process, so this is one test.

use std::sync::{Arc, Mutex};

use distcollective::log::{LogLevel, clear_log_handler, set_log_handler};
use distcollective::{CollectiveOperation, DistCollectiveLayer, ReduceOperation};

/// Logs one warning: all_reduce has no root.
fn log_a_warning() {
    DistCollectiveLayer::new(CollectiveOperation::AllReduce, Some(ReduceOperation::Sum), 3, &[]).expect("a layer");
}

#[test]
fn a_handler_gets_events_up_to_its_level_and_cannot_do_harm() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let collect = |most_verbose| {
        let lines = Arc::clone(&lines);
        let handler = move |level: LogLevel, text: &str| {
            lines.lock().expect("no panic").push(format!("{level:?}: {text}"));
            // An event inside the handler comes to no handler.
            log_a_warning();
            let error = clear_log_handler().expect_err("the handler calls it");
            assert_eq!(error.to_string(), "the handler of the log cannot replace itself");
        };
        set_log_handler(most_verbose, handler).expect("a handler");
    };
    let taken = || std::mem::take(&mut *lines.lock().expect("no panic"));

    collect(LogLevel::Error);
    log_a_warning();
    assert_eq!(taken(), [""; 0]);

    collect(LogLevel::Warn);
    log_a_warning();
    let warning = taken();
    assert!(matches!(&*warning, [one] if one.starts_with("Warn: ") && one.contains("root")), "{warning:?}");

    // A handler that panics does not end the call that logs.
    set_log_handler(LogLevel::Trace, |_, _| panic!("on purpose")).expect("a handler");
    log_a_warning();
    // It gets the next event too.
    collect(LogLevel::Trace);
    log_a_warning();
    assert_eq!(taken().len(), 1);

    clear_log_handler().expect("no handler");
    log_a_warning();
    assert_eq!(taken(), [""; 0]);
}
