{% macro build_plan(covered, goal, owner) -%}
    {#-
        Whether to build, to merge or to do nothing: {step, reason}. A build is always right, a merge is
        cheap. Each of the goal's tables gets its `low`, the batch up to which it is covered.
    -#}
    {%- for table in goal.tables -%}
        {%- do table.update({"low": covered.batches.get(table.name, 0) if covered is not none else 0}) -%}
    {%- endfor -%}
    {%- if covered is none or should_full_refresh() -%}
        {{ return({"step": "build", "reason": none}) }}
    {%- endif -%}
    {%- set changed = strandline.changed_definition(covered, goal) -%}
    {%- if changed and config.get("full_refresh") is false -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": " ~ changed ~ ": " ~ this ~ " shows rows that may be gone or different, and its config "
            ~ "`full_refresh: false` forbids building it anew. Remove that for one build; or keep the table under "
            ~ "another name and drop it here."
        ) }}
    {%- endif -%}
    {%- set lower = [] -%}
    {%- set higher = [] -%}
    {%- for table in goal.tables -%}
        {%- if table.head < table.low -%}
            {%- do lower.append("what it reads ends at batch " ~ table.head ~ ", it was built to batch " ~ table.low) -%}
        {%- elif table.head > table.low -%}
            {%- do higher.append(table.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if changed -%}
        {{ return({"step": "build", "reason": changed}) }}
    {%- elif covered.materialization != goal.materialization -%}
        {{ return({"step": "build", "reason": "it was materialized as " ~ covered.materialization}) }}
    {%- elif covered.primary_key != goal.primary_key or covered.cursor_field != goal.cursor_field -%}
        {{ return({"step": "build", "reason": "primary_key or cursor_field changed"}) }}
    {%- elif covered.generation_floor != goal.floor -%}
        {{ return({"step": "build", "reason": "delete_stale: a full refresh changed what it hides"}) }}
    {%- elif strandline.shown_of(goal.tables) is not none and not covered.exact -%}
        {{ return({"step": "build", "reason": "delete_stale: the table was written by others"}) }}
    {%- elif lower -%}
        {{ return({"step": "build", "reason": lower | first}) }}
    {%- endif -%}
    {{ return({"step": "merge" if higher else "nothing", "reason": none}) }}
{%- endmacro %}


{% macro changed_definition(covered, goal) -%}
    {#- Why what a table shows is no longer what its model says, whatever batches come; none where it is. -#}
    {%- set before = covered.get("raw_ids", {}) -%}
    {%- set reloaded = [] -%}
    {%- set built = [] -%}
    {%- for table in goal.tables -%}
        {%- if table.name in before and before[table.name] != table.id -%}
            {%- do reloaded.append(table.name) -%}
        {%- endif -%}
        {%- if table.built -%}
            {%- do built.append(table.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set now = goal.tables | map(attribute="name") | list -%}
    {%- if reloaded -%}
        {{ return(reloaded | join(", ") ~ " was dropped and loaded anew") }}
    {%- elif covered.said | list | sort != now | sort -%}
        {{ return("it read " ~ (covered.said | list | sort | join(", ") or "other tables") ~ ", now " ~ now | join(", ")) }}
    {%- elif covered.get("definition") and covered.definition != goal.definition -%}
        {{ return("its SQL, its row_filter or a view that it reads changed") }}
    {%- elif built -%}
        {{ return(
            built | join(", ") ~ " is a table that dbt builds, whose rows may change without a new batch (as a view or "
            ~ "ephemeral it would be merged from)"
        ) }}
    {%- endif -%}
    {{ return(none) }}
{%- endmacro %}
