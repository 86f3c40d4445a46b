//! Tests of the whole road from arguments and files to the resolved configuration.
