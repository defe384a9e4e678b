//! A thread that looks after threads inside NCCL.
//!
//! On a communicator that blocks, NCCL keeps a thread that enqueues a call until the call has its
//! place, which may depend on other ranks. That thread can look at nothing meanwhile: not at its
//! deadline, and not at whether a peer has failed. So it says until when it may stay, and the
//! watchdog looks for it.

use std::sync::{Arc, Mutex, Weak};

use super::domain::NcclDomain;
use crate::util::wait::LOOK;
use crate::util::{interrupt, lock};

/// What the watchdog looks at. Its thread ends when nothing is left, and is started again.
struct Watched {
    domains: Vec<Weak<NcclDomain>>,
    has_thread: bool,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { domains: Vec::new(), has_thread: false });

/// Looks at a domain's communicators from now on.
pub(super) fn watch(domain: &Arc<NcclDomain>) {
    let mut watched = lock(&WATCHED);
    let domain = Arc::downgrade(domain);
    if !watched.domains.iter().any(|other| other.ptr_eq(&domain)) {
        watched.domains.push(domain);
    }
    if watched.has_thread {
        return;
    }
    match std::thread::Builder::new().name("dcl-watchdog".to_owned()).spawn(look_again_and_again) {
        Ok(_) => watched.has_thread = true,
        Err(error) => crate::util::log::event!(WARN, "no thread to look after calls of NCCL: {error}"),
    }
}

fn look_again_and_again() {
    let _mask = interrupt::mask();
    let mut domains = Vec::new();
    loop {
        std::thread::sleep(LOOK);
        {
            let mut watched = lock(&WATCHED);
            watched.domains.retain(|domain| domain.strong_count() > 0);
            if watched.domains.is_empty() {
                watched.has_thread = false;
                return;
            }
            domains.extend(watched.domains.iter().filter_map(Weak::upgrade));
        }
        domains.drain(..).for_each(|domain| domain.watch());
    }
}
