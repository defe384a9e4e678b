//! What the launcher does with the signals that it receives.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use distcollective_launch::JobControl;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::raise;

/// A signal that comes so soon after another one is the same: `timeout` and some terminals send it
/// to the process and to its group.
const SAME: Duration = Duration::from_millis(250);

/// Passes signals on to the ranks from now on, except those that are ignored (`nohup` makes
/// programs ignore SIGHUP).
pub fn pass_on(control: JobControl) -> Result<()> {
    let mut caught = vec![SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP];
    let mut ignored = Vec::new();
    for &signal in &caught {
        if is_ignored(signal)? {
            ignored.push(signal);
        }
    }
    caught.retain(|signal| !ignored.contains(signal));
    let mut signals = Signals::new(caught)?;
    let pass = move || {
        let mut ended_at: Option<Instant> = None;
        for signal in signals.forever() {
            match signal {
                SIGUSR1 | SIGUSR2 => control.signal(signal),
                SIGTSTP => {
                    control.signal(SIGSTOP);
                    // It returns after SIGCONT. An error is impossible: every process may stop.
                    let _ = raise(SIGSTOP);
                    control.signal(SIGCONT);
                }
                _ => {
                    let now = Instant::now();
                    if ended_at.is_none_or(|at| now.duration_since(at) > SAME) {
                        control.end(signal);
                        ended_at = Some(now);
                    }
                }
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(pass).map(drop)
}

fn is_ignored(signal: i32) -> Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the new action is null, so the call only writes the present action, to memory of the
    // right type and size.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it wrote the action.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}
