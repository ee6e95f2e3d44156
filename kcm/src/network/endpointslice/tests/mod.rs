mod builders;
mod hints;
mod histories;
mod packing;
mod tables;
