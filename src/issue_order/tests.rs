//! Tickets that are alone, which take no lock.

use super::*;

#[test]
fn a_ticket_that_is_alone_takes_no_lock() {
    let order = IssueOrder::new();
    let alone = || {
        let _locked = order.shared.lock();
        let ticket = order.issue_here(Extent::WithGroups);
        assert!(ticket.is_next());
    };
    alone();
    // Also after there were several, which are dropped in any order.
    for first_dropped in [0, 1] {
        let mut tickets: VecDeque<_> = (0..2).map(|_| order.issue_here(Extent::Communicator)).collect();
        assert!(tickets[0].is_next() && !tickets[1].is_next());
        tickets.swap(0, first_dropped);
        tickets.clear();
        alone();
    }
}

#[test]
fn a_sole_ticket_blocks_what_it_covers_and_nothing_else() {
    let order = IssueOrder::new();
    let (group, other) = (order.descendant(), order.descendant());
    for (extent, is_covered) in [(Extent::Communicator, false), (Extent::WithGroups, true), (Extent::Run, true)] {
        let run = order.issue_here(extent);
        assert_eq!(group.issue_here(Extent::Communicator).is_next(), !is_covered);
        assert!(!order.issue_here(Extent::Communicator).is_next());
        drop(run);
        let call = group.issue_here(Extent::Communicator);
        assert!(other.issue_here(Extent::Communicator).is_next());
        assert!(!order.issue_here(Extent::WithGroups).is_next());
        drop(call);
    }
}

#[test]
fn work_is_behind_a_run_that_was_issued_before_it_and_only_then() {
    let order = IssueOrder::new();
    let enqueue =
        || order.issue(Extent::Communicator, 1, |ticket| (ticket.position().expect("it is enqueued"), ticket));
    // Its ticket is dropped, as when the work has run and its thread tells so.
    let (earlier, _) = enqueue();
    let run = order.issue_here(Extent::Run);
    let (later, ticket) = enqueue();
    assert!(run.is_next() && !later.is_behind_this_thread());
    run.run(|| assert!(!earlier.is_behind_this_thread() && later.is_behind_this_thread()));
    drop(ticket);
}
