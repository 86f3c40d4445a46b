//! The agent's end of the monitor's socket.
