# Shared by all: the study (config, scale, sealed protocols, arms), folders, and the interpreter.


def refuse_to_start(error):
    """Stop before anything is planned, with the one line a person needs."""
    sys.tracebacklimit = 0
    raise WorkflowError(str(error)) from None


try:
    STUDY = load_study(dict(config), CONFIG)
    for argument in sys.argv[1:]:
        # Targets are not known yet here, and a misspelled run would later end in the trace of an input function.
        STUDY.check_target(argument)
except UserError as error:
    refuse_to_start(error)

use_this_checkout(BASE)
ENVIRONMENT = str(BASE / "envs" / "cpu.yaml")
SCALE = STUDY.scale.name
OUT = STUDY.folder.as_posix()
DATA = f"{OUT}/data"
REGISTER = f"--preregistration {quote(STUDY.config.preregistration)}"


wildcard_constraints:
    run="[^/]+",
    edit="cap|repair",
    experiment="|".join(STUDY.experiments),


def arm_of(wildcards):
    return STUDY.arm(STUDY.run(wildcards.run))


def own_arm(wildcards):
    """Option that hands a job its arm where that is one of the config's own; nothing for a registered arm."""
    given = STUDY.own_argument(STUDY.run(wildcards.run))
    return f"--arm {quote(given)}" if given else ""


def yarn_ramps(wildcards):
    return f"--yarn-ramps {' '.join(STUDY.config.yarn_ramps)}" if arm_of(wildcards).yarn else ""


def code_of(stage):
    """Digest of the code of a stage, for the arm of the job's run where it has one."""
    return lambda wildcards: code_digest(stage, arm_of(wildcards) if hasattr(wildcards, "run") else None)


def paths(files):
    return [file.as_posix() for file in files]


def margins_of(wildcards):
    return [f"{OUT}/theory/margins.json"] if STUDY.needs_margins(STUDY.run(wildcards.run)) else []
