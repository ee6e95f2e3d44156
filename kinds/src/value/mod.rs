//! Values that appear in objects of many kinds, such as quantities, label selectors, IP addresses, times and
//! conditions.

pub mod access_modes;
pub mod condition;
pub mod int_or_string;
pub mod ip;
mod label_rules;
pub mod names;
pub mod quantity;
mod requirement;
pub mod resource_list;
pub mod selector;
mod selector_text;
pub mod time;
