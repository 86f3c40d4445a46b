//! Named scenarios of the whole agent.
