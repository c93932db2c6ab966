{% macro build_plan(existing, covered, goal, owner) -%}
    {#-
        Whether to build, to merge or to do nothing: {step, reason}. A build is always right, a merge is
        cheap. Adds `low` to each of the goal's tables: the batch up to which it is covered.
    -#}
    {%- do goal.update({"exact": covered is not none and covered.exact}) -%}
    {%- for table in goal.tables -%}
        {%- do table.update({"low": covered.batches.get(table.name, 0) if covered is not none else 0}) -%}
    {%- endfor -%}
    {%- if existing is none or should_full_refresh() -%}
        {{ return({"step": "build", "reason": none}) }}
    {%- elif covered is none -%}
        {%- do strandline.check_may_build("it was not built by " ~ goal.kind.name, owner) -%}
        {{ return({"step": "build", "reason": none}) }}
    {%- endif -%}
    {%- set reason = strandline.reason_to_build(covered, goal) -%}
    {%- if reason is none and not covered.exact
        and not (config.get("full_refresh") is false and strandline.still_as_said(existing, covered, goal)) -%}
        {%- set reason = "its table was written by something else since its last build, or that build was interrupted" -%}
    {%- endif -%}
    {%- if reason -%}
        {%- do strandline.check_may_build(reason, owner) -%}
        {{ return({"step": "build", "reason": reason}) }}
    {%- endif -%}
    {%- for table in goal.tables if table.head > table.low -%}
        {{ return({"step": "merge", "reason": none}) }}
    {%- endfor -%}
    {{ return({"step": "nothing", "reason": none}) }}
{%- endmacro %}


{% macro check_may_build(reason, owner) -%}
    {#- A build reads raw as it is now. If `full_refresh: false` forbids that, nothing is written. -#}
    {%- if config.get("full_refresh") is false -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ reason ~ ": " ~ this ~ " shows rows that may be gone or different, and its config "
            ~ "`full_refresh: false` forbids a rebuild. Remove that setting for one build, or keep a copy of the table "
            ~ "under another name and drop this one."
        ) }}
    {%- endif -%}
{%- endmacro %}


{% macro reason_to_build(covered, goal) -%}
    {#- Why a merge cannot bring the table in line with its model; none if it can. -#}
    {%- set changed = strandline.changed_definition(covered, goal) -%}
    {%- if changed -%}
        {{ return(changed) }}
    {%- elif covered.materialization != goal.kind.name -%}
        {{ return("it was materialized as " ~ covered.materialization) }}
    {%- elif covered.primary_key != goal.primary_key or covered.cursor_field != goal.cursor_field -%}
        {{ return("primary_key or cursor_field changed") }}
    {%- elif covered.generation_floor != goal.floor -%}
        {{ return("delete_stale: a full refresh changed what it hides") }}
    {%- endif -%}
    {%- for table in goal.tables if table.head < table.low -%}
        {{ return("what it reads ends at batch " ~ table.head ~ ", but it was built to batch " ~ table.low) }}
    {%- endfor -%}
    {{ return(none) }}
{%- endmacro %}


{% macro still_as_said(existing, covered, goal) -%}
    {#-
        Whether a table still holds what its own SELECT returns for its batches, or already for all existing ones,
        because a merge of only deletes leaves no row that shows it. Costs more than a build, so this runs only if
        a build is forbidden, for instance after one that was interrupted.
    -#}
    {%- set now = {} -%}
    {%- for table in goal.tables -%}
        {%- do now.update({table.name: table.head}) -%}
    {%- endfor -%}
    {%- if not covered.select -%}
        {{ return(false) }}
    {%- endif -%}
    {%- for batches in [covered.batches, now] -%}
        {%- if strandline.says(existing, dict(covered, batches=batches)) -%}
            {{ return(true) }}
        {%- endif -%}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}


{% macro says(existing, covered) -%}
    {#- Whether a table holds exactly what its SELECT returns for the batches that it covers. -#}
    {%- set goal = strandline.covered_goal(covered) -%}
    {%- set found = run_query("select count(*) from (" ~ strandline.differences(
        existing, goal.kind.select(covered.select, goal), strandline.row_identity(goal), ""
    ) ~ ") as differing") -%}
    {{ return(found.columns[0].values()[0] | int == 0) }}
{%- endmacro %}


{% macro changed_definition(covered, goal) -%}
    {#- Why a table no longer shows what its model says, whatever batches come; none if it still does. -#}
    {%- set before = covered.get("raw_ids", {}) -%}
    {%- set reloaded = [] -%}
    {%- for table in goal.tables -%}
        {%- if table.name in before and before[table.name] != table.id -%}
            {%- do reloaded.append(table.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {#- The order counts, too: it decides which of two tables wins for a key in both. -#}
    {%- set was = covered.get("raw") or covered.said | list -%}
    {%- set now = goal.tables | map(attribute="name") | list -%}
    {%- set rolled_back = strandline.rolled_back(covered, goal) -%}
    {%- if reloaded -%}
        {{ return(reloaded | join(", ") ~ " was dropped and reloaded") }}
    {%- elif rolled_back -%}
        {{ return(rolled_back | join(", ") ~ " was rolled back") }}
    {%- elif was != now -%}
        {{ return("it read " ~ (was | join(", ") or "other tables") ~ ", now " ~ now | join(", ")) }}
    {%- elif covered.get("definition") and covered.definition != goal.definition -%}
        {{ return("its SQL, its row_filter or a view that it reads changed") }}
    {%- elif covered.get("others", {}) != goal.others -%}
        {%- set before = covered.get("others", {}) -%}
        {%- set moved = [] -%}
        {%- for name in (goal.others | list + before | list) | unique if goal.others.get(name) != before.get(name) -%}
            {%- do moved.append(name) -%}
        {%- endfor -%}
        {{ return(moved | join(", ") ~ ", which it reads besides raw, changed") }}
    {%- endif -%}
    {{ return(none) }}
{%- endmacro %}


{% macro rolled_back(covered, goal) -%}
    {#-
        The raw tables whose rows are no longer those of the last build and later ones: the Iceberg snapshot that it read
        is still there, but no ancestor of the current one. Once it has expired, or a tag alone has kept it, nothing tells.
    -#}
    {%- set found = [] -%}
    {%- for table in goal.tables -%}
        {%- set before = covered.get("raw_snapshots", {}).get(table.name) -%}
        {%- if before is not none and table.snapshot is not none and before != table.snapshot
            and before in strandline.parents_told(table.relation, table.snapshot)
            and strandline.branched_off(table.relation, before, table.snapshot) -%}
            {%- do found.append(table.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(found) }}
{%- endmacro %}
