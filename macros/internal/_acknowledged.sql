{% macro _acknowledgements(settings, owner) -%}
    {#- Validates and returns the known incidents in config.meta.strandline.acknowledged: [{tests,
        first, last, snapshot, rows, who, when, why}]. -#}
    {%- set incidents = [] -%}
    {%- for entry in settings.get("acknowledged") or [] -%}
        {%- for name in ["test", "who", "when", "why"] if not entry.get(name) -%}
            {{ strandline._refuse_acknowledgement(owner, "lacks `" ~ name ~ "`") }}
        {%- endfor -%}
        {%- for name in entry if name not in [
            "test", "batches", "snapshot", "rows", "who", "when", "why"] -%}
            {{ strandline._refuse_acknowledgement(owner, "has the unknown key `" ~ name ~ "`") }}
        {%- endfor -%}
        {%- set batches = entry.get("batches") -%}
        {%- set batches = [batches, batches] if batches is number else (batches or []) | list -%}
        {%- if (batches | length == 2) == (entry.get("snapshot") is not none)
            or batches | reject("number") | list
            or batches != batches | sort -%}
            {{ strandline._refuse_acknowledgement(owner, "needs either `batches`, as a number or "
                ~ "[first, last], or a `snapshot`") }}
        {%- endif -%}
        {%- do incidents.append({
            "tests": strandline._as_list(entry.test),
            "first": batches[0] if batches else none,
            "last": batches[1] if batches else none,
            "snapshot": entry.get("snapshot"),
            "rows": entry.get("rows", 0),
            "who": entry.who | string,
            "when": entry.when | string,
            "why": entry.why | string,
        }) -%}
    {%- endfor -%}
    {{ return(incidents) }}
{%- endmacro %}


{% macro _refuse_acknowledgement(owner, problem) -%}
    {{ exceptions.raise_compiler_error(
        owner ~ ": an entry of config.meta.strandline.acknowledged " ~ problem
        ~ ". Example: {test: batches_complete, "
        ~ "batches: [3, 5], who: ada, when: '2026-03-01', why: 'rows of a customer erased by "
        ~ "request'}; for a commit by another program, `snapshot: 8122034` instead of batches."
    ) }}
{%- endmacro %}


{% macro _acknowledged(relation, test, owner) -%}
    {#- Returns the incidents of a table that are acknowledged for a test. Logs each incident, so
        that it is not overlooked. -#}
    {%- set incidents = [] -%}
    {%- set nodes = graph.sources.values() | list + graph.nodes.values() | selectattr(
        "resource_type", "equalto", "model") | list -%}
    {%- for node in nodes
        if node.schema | lower == relation.schema | lower
        and (node.get("identifier") or node.alias) | lower == relation.identifier | lower -%}
        {%- for incident in strandline._acknowledgements(strandline._settings(node), owner)
            if test in incident.tests -%}
            {%- set head = strandline._value("select max(_cq_batch) from "
                ~ strandline._node_relation(node)) or 0 -%}
            {%- if incident.last is not none and incident.last > head -%}
                {{ strandline._refuse_acknowledgement(
                    owner, "is about batch " ~ incident.last ~ ", which does not exist yet") }}
            {%- endif -%}
            {{ log(
                test ~ " on " ~ strandline._table_name(relation) ~ ": "
                ~ ("snapshot " ~ incident.snapshot if incident.snapshot else "batches "
                ~ incident.first ~ " to " ~ incident.last)
                ~ " acknowledged by " ~ incident.who ~ ", " ~ incident.when ~ ": "
                ~ incident.why, info=true
            ) }}
            {%- do incidents.append(incident) -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(incidents) }}
{%- endmacro %}


{% macro _incidents(subject, test, owner) -%}
    {#- Returns the incidents that are acknowledged for a test, both for the tested table and for
        the raw tables that its model reads. -#}
    {%- set incidents = strandline._acknowledged(subject.relation, test, owner) -%}
    {%- for relation in strandline._raw_relations(subject) -%}
        {%- for incident in strandline._acknowledged(relation, test, owner) -%}
            {%- do incidents.append(dict(incident, table=strandline._table_name(relation)
                if subject.spec.union else none)) -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(incidents) }}
{%- endmacro %}


{% macro _not_acknowledged(incidents, batch="_cq_batch", snapshot=none) -%}
    {#- Returns the condition that a failing row does not belong to an incident. Rows without a
        batch are treated as batch 0. -#}
    {%- set conditions = ["true"] -%}
    {%- for incident in incidents -%}
        {%- if incident.snapshot and snapshot -%}
            {%- do conditions.append(snapshot ~ " is distinct from " ~ incident.snapshot) -%}
        {%- elif not incident.snapshot -%}
            {%- do conditions.append(
                "not (coalesce(" ~ batch ~ ", 0) between " ~ incident.first ~ " and "
                ~ incident.last
                ~ (" and " ~ snapshot ~ " is null" if snapshot else "")
                ~ (" and _cq_table = " ~ strandline._literal(incident.table)
                if incident.get("table") else "") ~ ")"
            ) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(conditions | join(" and ")) }}
{%- endmacro %}
