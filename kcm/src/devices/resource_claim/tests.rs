//! Tables of the rules and of the keys that changes lead to.
