"""What RO-Crate 1.1 and the profile Workflow Run Crate 0.5 say a crate MUST hold, as assertions on its JSON.

Written from the specifications (w3id.org/ro/crate/1.1, w3id.org/ro/wfrun/workflow/0.5), not from the code that writes it.
"""

import datetime
import hashlib
import json

ACTIONS = {"CreateAction", "ActivateAction", "UpdateAction"}
TOOLS = {"SoftwareApplication", "SoftwareSourceCode", "ComputationalWorkflow"}
DATA = {"File", "Dataset", "Collection", "PropertyValue", "CreativeWork"}


def check(folder):
    """Assert every MUST on `folder/ro-crate-metadata.json`; return its entities by id."""
    document = json.loads((folder / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    context, graph = document["@context"], document["@graph"]
    assert context[0] == "https://w3id.org/ro/crate/1.1/context"
    entities = {entity["@id"]: entity for entity in graph}
    assert len(entities) == len(graph), "ids are unique"
    assert all(entity.get("@type") for entity in graph)
    for entity in graph:
        for target in references(entity):
            assert target in entities or target.startswith(("https://", "http://")), f"{target} is described nowhere"

    descriptor, root = entities["ro-crate-metadata.json"], entities["./"]
    assert types(descriptor) == {"CreativeWork"}
    assert descriptor["about"] == {"@id": "./"}
    assert "https://w3id.org/ro/crate/1.1" in ids(descriptor["conformsTo"])
    assert types(root) == {"Dataset"}
    assert root["name"]
    assert root["description"]
    datetime.date.fromisoformat(root["datePublished"])
    assert entities[root["license"]["@id"]]["name"]

    profiles = set(ids(root["conformsTo"]))
    for kind in ("process", "workflow"):
        (profile,) = [url for url in profiles if url.startswith(f"https://w3id.org/ro/wfrun/{kind}/")]
        assert types(entities[profile]) == {"CreativeWork"}
    main = entities[root["mainEntity"]["@id"]]
    assert types(main) >= {"File", "SoftwareSourceCode", "ComputationalWorkflow"}
    assert types(entities[main["programmingLanguage"]["@id"]]) == {"ComputerLanguage"}

    actions = [entity for entity in graph if types(entity) & ACTIONS]
    assert any(action["instrument"]["@id"] == main["@id"] for action in actions)
    for action in actions:
        assert types(entities[action["instrument"]["@id"]]) & TOOLS
        for target in (*ids(action["object"]), *ids(action["result"])):
            assert types(entities[target]) & DATA, target
    for parameter in (*ids(main["input"]), *ids(main["output"])):
        entity = entities[parameter]
        assert types(entity) == {"FormalParameter"}
        assert entity["additionalType"]
        assert types(entities[entity["workExample"]["@id"]]) & DATA

    files = [entity for entity in graph if "File" in types(entity)]
    assert {entity["@id"] for entity in files} == set(ids(root["hasPart"]))
    for entity in files:
        data = (folder / entity["@id"]).read_bytes()
        if "sha256" in entity:
            assert entity["sha256"] == hashlib.sha256(data).hexdigest(), entity["@id"]
            assert entity["contentSize"] == str(len(data))
    return entities


def types(entity):
    kind = entity["@type"]
    return set(kind) if isinstance(kind, list) else {kind}


def ids(values):
    return [value["@id"] for value in (values if isinstance(values, list) else [values])]


def references(value):
    """Every {"@id": ...} inside an entity, its own id left out."""
    for key, part in value.items():
        for item in part if isinstance(part, list) else [part]:
            if isinstance(item, dict):
                yield item["@id"]
            assert key != "@id" or isinstance(part, str)
