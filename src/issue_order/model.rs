//! The order under the model checker loom, which tries every way in which threads can interleave. A
//! ticket that is never dropped, or a missing notification, shows as a deadlock: waits have no
//! timeout here.

use std::time::Duration;

use loom::sync::mpsc::{Receiver, Sender, channel};
use loom::thread;

use super::*;
use crate::sync::Tracked;

fn explore(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// What two calls must not write at the same time.
type Touched = Arc<Tracked>;

fn run(ticket: &IssueTicket<'_>, touched: &Touched) {
    let deadline = Instant::now() + Duration::from_secs(3600);
    ticket.wait(deadline, || Ok(()), |error| error).expect("its turn comes");
    ticket.run(|| touched.write(|| ()));
}

/// A worker stream: a thread that runs two pieces of work, one after the other.
fn stream() -> (Sender<(IssueTicket<'static>, Touched)>, thread::JoinHandle<()>) {
    let (sender, work): (_, Receiver<(IssueTicket<'static>, Touched)>) = channel();
    let work = move || {
        for _ in 0..2 {
            let (ticket, touched) = work.recv().expect("two pieces of work");
            run(&ticket, &touched);
        }
    };
    (sender, thread::spawn(work))
}

#[test]
fn calls_of_two_threads_follow_one_another() {
    explore(|| {
        let (order, touched) = (IssueOrder::new(), Touched::default());
        let other = thread::spawn({
            let (order, touched) = (Arc::clone(&order), Arc::clone(&touched));
            move || run(&order.issue_here(Extent::Communicator), &touched)
        });
        run(&order.issue_here(Extent::Communicator), &touched);
        other.join().expect("no panic");
    });
}

#[test]
fn a_run_excludes_the_groups_of_its_communicator() {
    explore(|| {
        let (order, touched) = (IssueOrder::new(), Touched::default());
        let group = order.descendant();
        let other = thread::spawn({
            let touched = Arc::clone(&touched);
            move || run(&group.issue_here(Extent::Communicator), &touched)
        });
        run(&order.issue_here(Extent::WithGroups), &touched);
        other.join().expect("no panic");
    });
}

/// If a thread took the ticket before it gives the work to a stream, not in one step, each
/// stream could wait for work that is behind the other stream's work.
#[test]
fn two_threads_that_give_work_to_two_streams_do_not_deadlock() {
    explore(|| {
        let (order, touched) = (IssueOrder::new(), Touched::default());
        let ((first, first_thread), (second, second_thread)) = (stream(), stream());
        let issue = |order: &Arc<IssueOrder>, touched: &Touched, stream: &Sender<_>| {
            let enqueue = |ticket| stream.send((ticket, Arc::clone(touched))).expect("the stream listens");
            order.issue(Extent::Communicator, 1, enqueue);
        };
        let other = thread::spawn({
            let (order, touched) = (Arc::clone(&order), Arc::clone(&touched));
            let (first, second) = (first.clone(), second.clone());
            move || {
                issue(&order, &touched, &second);
                issue(&order, &touched, &first);
            }
        });
        issue(&order, &touched, &first);
        issue(&order, &touched, &second);
        other.join().expect("no panic");
        first_thread.join().expect("no panic");
        second_thread.join().expect("no panic");
    });
}

/// A call that ends before its turn drops its ticket.
#[test]
fn a_ticket_that_is_dropped_before_its_turn_blocks_no_other() {
    explore(|| {
        let (order, touched) = (IssueOrder::new(), Touched::default());
        let [first, second, third] = [(); 3].map(|()| order.issue(Extent::Communicator, 1, |ticket| ticket));
        let waiting = thread::spawn({
            let touched = Arc::clone(&touched);
            move || run(&third, &touched)
        });
        drop(second);
        run(&first, &touched);
        drop(first);
        waiting.join().expect("no panic");
    });
}
