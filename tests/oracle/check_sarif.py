"""Whether SARIF of `thane audit` is SARIF 2.1.0, by the object model that Microsoft generated from the schema (sarif-om).

    python tests/oracle/check_sarif.py THANE [VALIDATOR]

VALIDATOR is `Sarif.Multitool` of the npm package `@microsoft/sarif-multitool-linux`: with it, the rules of the SARIF SDK for
logs and for code scanning hold too.

Every object may have the properties of its class only, and must have those that the class requires. sarif-om has no types of
properties: which class stands where is said here, after sections 3.13 to 3.52 of the standard, as are the words that some
properties are limited to.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import attr
import sarif_om

# Class of what stands at a property; those of a list are the items'.
CLASSES = {
    "SarifLog": {"runs": "Run"},
    "Run": {"tool": "Tool", "artifacts": "Artifact", "invocations": "Invocation", "results": "Result"},
    "Tool": {"driver": "ToolComponent"},
    "ToolComponent": {"rules": "ReportingDescriptor"},
    "ReportingDescriptor": {
        "shortDescription": "MultiformatMessageString",
        "fullDescription": "MultiformatMessageString",
        "help": "MultiformatMessageString",
        "defaultConfiguration": "ReportingConfiguration",
    },
    "Artifact": {"location": "ArtifactLocation"},
    "Result": {"message": "Message", "locations": "Location", "relatedLocations": "Location"},
    "Location": {"message": "Message", "physicalLocation": "PhysicalLocation", "logicalLocations": "LogicalLocation"},
    "PhysicalLocation": {"artifactLocation": "ArtifactLocation", "region": "Region"},
}
WORDS = {
    "level": {"none", "note", "warning", "error"},
    "baselineState": {"new", "unchanged", "updated", "absent"},
    "columnKind": {"utf16CodeUnits", "unicodeCodePoints"},
}
# Maps whose keys are free.
FREE = {"properties", "partialFingerprints"}


def properties(name):
    """The properties of a class, and those that it requires."""
    fields = {f.metadata["schema_property_name"]: f for f in attr.fields(getattr(sarif_om, name))}
    required = {k for k, f in fields.items() if f.default is attr.NOTHING}
    # sarif-om 1.0.4 calls it something else.
    return set(fields) | {"$schema"}, required


def check(name, value, path, faults):
    if not isinstance(value, dict):
        faults.append(f"{path}: an object is due")
        return
    known, required = properties(name)
    faults += [f"{path}: `{k}` is no property of {name}" for k in value if k not in known]
    faults += [f"{path}: {name} requires `{k}`" for k in required if k not in value]
    for key, item in value.items():
        at = f"{path}.{key}"
        if key in WORDS and item not in WORDS[key]:
            faults.append(f"{at}: {item!r} is none of {sorted(WORDS[key])}")
        inner = CLASSES.get(name, {}).get(key)
        items = item if isinstance(item, list) else [item]
        if inner:
            for i, one in enumerate(items):
                check(inner, one, f"{at}[{i}]", faults)
        elif key not in FREE and any(isinstance(one, dict) for one in items):
            faults.append(f"{at}: this check does not know what stands here")


def consistent(log, faults):
    """What no schema says: results point to their rules, and rules stand once."""
    for run in log["runs"]:
        rules = [r["id"] for r in run["tool"]["driver"]["rules"]]
        if len(rules) != len(set(rules)):
            faults.append("a rule stands twice")
        fired = [result["ruleId"] for result in run["results"]]
        if len(fired) != len(set(fired)):
            faults.append("a rule has two results")
        faults += [f"{r['id']}: no link" for r in run["tool"]["driver"]["rules"] if not r.get("helpUri", "").startswith("https://")]
        for result in run["results"]:
            if rules[result["ruleIndex"]] != result["ruleId"]:
                faults.append(f"ruleIndex {result['ruleIndex']} is not {result['ruleId']}")
            index = result["locations"][0]["physicalLocation"]["artifactLocation"]["index"]
            if index >= len(run["artifacts"]):
                faults.append(f"artifact {index} is not there")
            if "region" not in result["locations"][0]["physicalLocation"]:
                faults.append(f"{result['message']['text']}: no line")


def validated(validator, log):
    """What the validator of the SARIF SDK objects to, by the rules of the standard and of code scanning."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "log.sarif"
        file.write_text(json.dumps(log))
        command = [validator, "validate", file, "--rule-kind", "Sarif;Ghas", "--level", "Error;Warning", "--kind", "Fail"]
        # It needs no library of locales.
        env = os.environ | {"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"}
        said = subprocess.run(command, capture_output=True, text=True, env=env).stdout
    if "Done. 1 files scanned." not in said:
        sys.exit(said)
    lines = [line for line in said.splitlines() if ": error " in line or ": warning " in line]
    # No address of the project is known.
    return [line for line in lines if "SARIF2005" not in line]


def main():
    thane, *validator = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parents[2]
    broken = root / "tests/example/broken.mil"
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder) / "base.json"
        subprocess.run([thane, "audit", broken, "--format", "json", "-o", base], check=True, stderr=subprocess.DEVNULL)
        # A package, by a path outside of the working folder.
        packaged = pathlib.Path(folder) / "a package.mlpackage"
        fixable = root / "tests/example/fixable.mil"
        subprocess.run([thane, "audit", fixable, "--fix", "-o", packaged], check=True, capture_output=True)
        runs = [
            [broken],
            [broken, "--target", "m4,a19,m1+macos15"],
            [broken, "--baseline", base, "--deny", "note"],
            [root / "tests/example/fixed.mil"],
            [broken, "--direct"],
            [packaged],
        ]
        for args in runs:
            done = subprocess.run([thane, "audit", *args, "--format", "sarif"], capture_output=True, text=True)
            log, faults = json.loads(done.stdout), []
            check("SarifLog", log, "log", faults)
            consistent(log, faults)
            if log["version"] != "2.1.0" or "sarif-2.1.0" not in log["$schema"]:
                faults.append("version")
            if validator:
                faults += validated(validator[0], log)
            if faults:
                sys.exit("\n".join(faults))
            print(f"{' '.join(map(str, args))}: {len(log['runs'][0]['results'])} results")
    # The check can fail.
    log["runs"][0]["surplus"] = 1
    del log["runs"][0]["tool"]
    faults = []
    check("SarifLog", log, "log", faults)
    assert len(faults) == 2, faults


if __name__ == "__main__":
    main()
