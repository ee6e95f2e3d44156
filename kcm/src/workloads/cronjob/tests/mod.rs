mod reconcile;
mod tables;
