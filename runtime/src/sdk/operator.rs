//! Controllers that run as one process: shared watches, one Lease.

use std::sync::Arc;

use super::controller::{Prepared, WholeKinds};
use crate::client::Clients;
use crate::election::ElectionError;
use crate::manager::{Manager, ManagerOptions};
use crate::watch::Builder;

/// The controllers of a process.
pub struct Operator {
    pub(super) name: &'static str,
    controllers: Vec<Prepared>,
}

impl Operator {
    /// Creates an operator without controllers. `name` is the name of its Lease, and a part of its default user agent.
    pub fn new(name: &'static str) -> Self {
        Self { name, controllers: Vec::new() }
    }

    /// Adds a controller.
    pub fn with(mut self, controller: Prepared) -> Self {
        self.controllers.push(controller);
        self
    }

    /// Creates the manager that runs the controllers. Only a process that does not use [`Operator::run`] needs this.
    ///
    /// # Errors
    /// When the configuration of the election is invalid.
    pub fn manager(self, clients: Arc<Clients>, options: ManagerOptions) -> Result<Manager, ElectionError> {
        let whole: WholeKinds =
            self.controllers.iter().flat_map(|controller| controller.whole.iter().copied()).collect();
        let mut needs = Builder::default();
        let mut starts = Vec::new();
        for controller in self.controllers {
            (controller.need)(&mut needs, &whole);
            starts.push(controller.start);
        }
        let mut manager = Manager::new(clients, needs.build(), options)?;
        manager.record_leadership(self.name);
        starts.into_iter().for_each(|start| start(&mut manager, &whole));
        Ok(manager)
    }
}
