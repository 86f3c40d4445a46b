# What there is to do here. `scripts/test` is what continuous integration runs.

# Lists this.
default:
    @just --list

# While you write: unit tests, simulation, the repository's rules. At most 3 minutes when built before.
check *names:
    cargo nextest run --locked -E 'not binary(it) or (binary(it) and test(/^(sim|tidy)::/))' {{names}}

# What CI runs; `just test all` adds what takes longer. As root.
test *names:
    scripts/test {{names}}

# What needs neither root nor containerd, with format and lints.
quick *names:
    cargo fmt --check
    cargo clippy --locked --all-targets -- -D warnings
    cargo nextest run --locked {{names}}

# The repository's rules alone.
tidy:
    cargo nextest run --locked --test it tidy::

# The simulation with this many seeds, from `first` on.
sim seeds="1000" first="0":
    SIM_SEEDS={{seeds}} SIM_FIRST={{first}} cargo test --locked --test it sim::seeds::

# The scenarios of pods on containerd and on the embedded runtime. As root.
pods name="":
    cargo nextest run --locked --profile ci --test it -E 'test(/^pods::.*{{name}}/)'

# A hundred pods of every shape come, change, fail and go. As root.
storm pods="100" rounds="300":
    AGENT_STORM_PODS={{pods}} AGENT_STORM_ROUNDS={{rounds}} cargo test --locked --test it whole_storm

# Deaths of agent and monitors at random places and moments, so many in a row. As root.
faults rounds="500" seed="1":
    AGENT_FAULT_ROUNDS={{rounds}} AGENT_FAULT_SEED={{seed}} cargo test --locked --test it random_deaths -- --nocapture

# A disk that fails: so many calls that fail, in every way that disks do, and five times as many power cuts. As root.
fs-faults rounds="600" seed="1":
    AGENT_FS_FAULT_ROUNDS={{rounds}} AGENT_FS_FAULT_SEED={{seed}} cargo test --locked --test it fs_faults:: -- --nocapture --test-threads=1

# Cuts the power of a machine in QEMU so many times while pods and images come and go, and checks what comes back. As root.
power-cut cuts=env_var_or_default("CUTS", "20"):
    CUTS={{cuts}} scripts/power-cut/run

# The release binary's figures. As root; AGENT_BUDGET_STRICT=1 fails on times, too.
budget:
    cargo build --locked --release --bin agent
    cargo nextest run --locked --profile ci --test it budget:: --no-capture

# Licences, bans, sources, advisories.
deny:
    cargo deny --locked check

# See it work; `just demo stop` ends it. As root.
demo *what:
    scripts/demo {{what}}
