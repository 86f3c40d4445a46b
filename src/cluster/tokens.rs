//! Tokens of service accounts, bound to pods of this node.

pub(crate) mod rules;
