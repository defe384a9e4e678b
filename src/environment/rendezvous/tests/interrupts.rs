//! The interrupt hook ends waits of the rendezvous, and ranks that have met are told.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};

use super::*;
use crate::util::interrupt::set_interrupt_hook;

thread_local! {
    /// Whether the hook ends the waits of this thread.
    static ENDS: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Has the hook end the waits of this thread from the moment at which the flag is set.
fn end_this_thread(flag: Arc<AtomicBool>) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let ends = || ENDS.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)));
        let hook = move || if ends() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        set_interrupt_hook(hook).expect("no other test of this program sets one");
    });
    ENDS.set(Some(flag));
}

fn set() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(true))
}

/// The error of a rank that joins, whose waits the hook ends.
fn error_of(endpoint: &Endpoint, participant: &Participant<'_>, flag: Arc<AtomicBool>) -> Error {
    end_this_thread(flag);
    Rendezvous::join(endpoint, participant).map(|_| ()).expect_err("ranks are missing")
}

#[test]
fn a_rank_that_looks_for_rank_0_is_interrupted() {
    let port = Port::free();
    let folder = Folder::new();
    for endpoint in [&port.endpoint, &folder.endpoint().1] {
        let error =
            scope(|scope| scope.spawn(|| error_of(endpoint, &participant(1, 2), set())).join().expect("no panic"));
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        assert_eq!(error.to_string(), format!("interrupted by the program while rank 0 was not found at {endpoint}"));
    }
}

#[test]
fn an_interrupted_rank_0_tells_the_ranks_that_have_come() {
    let port = Port::free();
    let flag = Arc::new(AtomicBool::new(false));
    scope(|scope| {
        let rank_0 = scope.spawn(|| error_of(&port.endpoint, &participant(0, 3), Arc::clone(&flag)));
        let (mut channel, _) = port.hello(&participant(1, 3), 1);
        flag.store(true, Ordering::Relaxed);
        let error = rank_0.join().expect("no panic");
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        let reason = format!("interrupted by the program while rank 2 of 3 had not come to {}", port.endpoint);
        assert_eq!(error.to_string(), reason);
        let told = channel
            .receive::<RendezvousMessage>(LONGEST_OF_MEMBER, &mut Wait::until(soon()))
            .expect("an open connection");
        let WireMessage::End(end) = told else { panic!("no end") };
        assert_eq!((end.cause, end.reason), (Cause::Failed, reason));
    });
}

/// What an interrupted peer sends reaches the other peers by way of rank 0.
#[test]
fn the_end_of_a_peer_ends_the_rendezvous() {
    let port = Port::free();
    scope(|scope| {
        let rank_0 = scope.spawn(|| Rendezvous::join(&port.endpoint, &participant(0, 4)).map(|_| ()));
        let [(mut first, _), (mut second, _)] = [1, 2].map(|rank| port.hello(&participant(rank, 4), rank));
        send_end([&mut first], &error!(Interrupted, "interrupted by the test"));
        let error = rank_0.join().expect("no panic").expect_err("rank 1 has ended it");
        assert_eq!(error.kind(), ErrorKind::Aborted);
        assert_eq!(error.to_string(), "rank 1 ended the start of the job: interrupted by the test");
        let told = second
            .receive::<RendezvousMessage>(LONGEST_OF_MEMBER, &mut Wait::until(soon()))
            .expect("an open connection");
        let WireMessage::End(end) = told else { panic!("no end") };
        assert_eq!((end.cause, end.reason), (Cause::Failed, error.to_string()));
    });
}

/// A rank that the hook stops in an exchange ends it for all. The other rank comes after that.
#[test]
fn an_interrupted_exchange_ends_for_all() {
    for interrupted in [0, 1] {
        let port = Port::free();
        let was_interrupted = AtomicBool::new(false);
        let (endpoint, was_interrupted) = (&port.endpoint, &was_interrupted);
        scope(|scope| {
            let ranks = [0, 1].map(|rank| {
                scope.spawn(move || {
                    let mut rendezvous = Rendezvous::join(endpoint, &participant(rank, 2)).expect("both come");
                    if rank == interrupted {
                        end_this_thread(set());
                        let error = rendezvous.exchange(&[1], soon()).expect_err("the other one does not come");
                        was_interrupted.store(true, Ordering::Release);
                        return error;
                    }
                    patiently(|| was_interrupted.load(Ordering::Acquire).then_some(()));
                    rendezvous.exchange(&[1], soon()).expect_err("it has ended")
                })
            });
            let errors = ranks.map(|rank| rank.join().expect("no panic"));
            let (own, other) = (&errors[interrupted as usize], &errors[1 - interrupted as usize]);
            assert_eq!(own.kind(), ErrorKind::Interrupted, "{own}");
            assert_eq!(other.kind(), ErrorKind::PeerLost, "{other}");
            assert!(other.to_string().ends_with(&own.to_string()), "{other}");
        });
    }
}
