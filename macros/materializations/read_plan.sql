{% macro check_reads(sql, goal, plan, owner) -%}
    {#-
        Compares what dbt says that a model reads with what Spark reads for its SELECT, and turns a merge into a
        build where a row depends on more than its own version: new versions would leave the rows of others as they
        were. Under --defer, a view reads other tables than the graph says.
    -#}
    {#- Such a SELECT reads what it says, and most models have one: Spark need not be asked. -#}
    {%- if strandline.selects_whole_table(sql, goal.tables) -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set raw = goal.tables | map(attribute="name") | list -%}
    {%- set reads = strandline.read_plan(sql, goal.others | reject("in", raw) | list) -%}
    {%- if reads is none -%}
        {{ return(none) }}
    {%- endif -%}
    {%- if reads.tables is not none and not invocation_args_dict.get("defer") -%}
        {%- for table in goal.tables if not strandline.is_named(table.name, reads.tables) -%}
            {{ exceptions.raise_compiler_error(
                owner ~ ": by dbt's graph it reads " ~ table.name ~ ", but its SELECT reads "
                ~ (reads.tables | join(", ") or "no table") ~ ", so its batches would be counted in the wrong place. Name "
                ~ "the raw table by source() in the SELECT itself; if it reads a view, build that, too (--select +"
                ~ model.name ~ "); if the project overrides source(), let it return the table that the source declares."
            ) }}
        {%- endfor -%}
        {%- set known = raw + goal.others | list -%}
        {%- for read in reads.tables if not strandline.is_any_of(read, known) -%}
            {%- do exceptions.warn(
                owner ~ ": it reads " ~ read ~ ", which it names without source() or ref(): its changes go unseen "
                ~ "until a new batch comes, which then rebuilds the table. Name it by source() or ref()."
            ) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- if plan.step == "merge" and reads.around -%}
        {%- do plan.update({
            "step": "build",
            "reason": "its SELECT computes rows from other versions, too (" ~ reads.around ~ ")",
        }) -%}
        {%- do strandline.check_may_build(plan.reason, owner) -%}
    {%- endif -%}
{%- endmacro %}


{% macro read_plan(sql, others) -%}
    {#-
        What Spark reads for a SELECT: {tables, around}. `tables`: the names of all tables, through views. `around`: the
        step that computes a row from more than one version, as a window, an aggregate or a join of a raw table with
        itself does; none if each row depends on its own version. In doubt, a step counts as such, and a table as raw
        unless it is one of the others, whose changes rebuild the model. none if the plan has not the form of Spark's own.
    -#}
    {%- set plan = run_query("explain extended " ~ sql).columns[0].values()[0] -%}
    {%- set analyzed, found, rest = plan.partition("== Optimized Logical Plan ==") -%}
    {%- if "== Parsed Logical Plan ==" not in plan -%}
        {{ return(none) }}
    {%- elif "== Physical Plan ==" not in rest -%}
        {{ return({"tables": none, "around": "a plan that spark.sql.maxPlanStringLength cuts off"}) }}
    {%- endif -%}
    {%- set reads = {"tables": [], "around": none} -%}
    {%- for step in strandline.plan_steps(analyzed.partition("== Analyzed Logical Plan ==")[2]) if step.table -%}
        {#- Spark names an Iceberg table twice. -#}
        {%- set half = step.table[:(step.table | length - 1) // 2] -%}
        {%- set name = half if step.table == half ~ " " ~ half else step.table -%}
        {%- do reads.tables.append(name) if name not in reads.tables -%}
    {%- endfor -%}
    {%- set row_by_row = ["Project", "Filter", "Union", "Join", "Generate", "Expand", "Sort", "Repartition",
        "RepartitionByExpression", "RebalancePartitions", "BatchEvalPython", "ArrowEvalPython"] -%}
    {%- set above = [] -%}
    {%- for step in strandline.plan_steps(rest.partition("== Physical Plan ==")[0]) -%}
        {%- set parents = above | selectattr("depth", "lt", step.depth) | list -%}
        {%- do above.clear() -%}
        {%- do above.extend(parents + [step]) -%}
        {%- do reads.update({"around": "cached rows"}) if step.name == "InMemoryRelation" and not reads.around -%}
        {%- set is_raw = step.table and not strandline.is_any_of(step.table, others) and not strandline.only_prunes(above) -%}
        {%- for parent in parents if is_raw -%}
            {%- set branch = above[loop.index].place -%}
            {%- do parent.branches.append(branch) if branch not in parent.branches -%}
            {%- set alone = parent.name in row_by_row and (parent.branches | length == 1 or parent.name == "Union") -%}
            {%- do reads.update({"around": parent.name}) if not alone and not reads.around -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(reads) }}
{%- endmacro %}


{% macro plan_lines(text) -%}
    {#- A plan's lines, one a step. One of no such form goes on with a string, or a name, that has a line break. -#}
    {%- set lines = [] -%}
    {%- for line in text.strip().splitlines() -%}
        {%- if not lines or modules.re.match("(?:[: ]  )*[:+]- [A-Za-z]", line) -%}
            {%- do lines.append(line) -%}
        {%- else -%}
            {%- do lines.append(lines.pop() ~ " " ~ line) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(lines) }}
{%- endmacro %}


{% macro plan_steps(text) -%}
    {#-
        The steps of a plan that Spark prints as a tree, each above what it reads: {place, depth, name, prunes, table,
        branches}.
    -#}
    {%- set lines = strandline.plan_lines(text) -%}
    {%- set steps = [] -%}
    {%- for line in lines -%}
        {%- set found = modules.re.match("((?:[: ]  )*)([:+]- )?(\\w+)(.*)", line) -%}
        {%- set name = found.group(3) if found else line -%}
        {%- set of = {
            "RelationV2": "\\[.*\\] (\\S.*)",
            "Relation": " (\\S+?)\\[",
            "HiveTableRelation": " \\[([^,]+),",
        }.get(name) -%}
        {%- set table = modules.re.match(of, found.group(4)) if of else none -%}
        {%- set nameless = name if name in ("Relation", "RelationV2", "HiveTableRelation", "LogicalRDD") else none -%}
        {%- do steps.append({
            "place": steps | length,
            "depth": found.group(1) | length // 3 + (1 if found.group(2) else 0) if found else 0,
            "name": name,
            "prunes": name == "Filter" and "dynamicpruning#" in line and "subquery#" not in line,
            "table": table.group(1) | replace("`", "") if table is not none else nameless,
            "branches": [],
        }) -%}
    {%- endfor -%}
    {{ return(steps) }}
{%- endmacro %}


{% macro is_named(name, read) -%}
    {#- Whether a table, as name_of() calls it, is among those that a plan names with their catalog. -#}
    {%- for one in read if strandline.is_any_of(one, [name]) -%}
        {{ return(true) }}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}


{% macro is_any_of(read, names) -%}
    {#- Whether a table that a plan reads is one of several, or a branch, a tag or a metadata table of one. -#}
    {%- for name in names if modules.re.search("(^|[ .])" ~ modules.re.escape(name | lower) ~ "($|[ .@])", read | lower) -%}
        {{ return(true) }}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}


{% macro only_prunes(path) -%}
    {#- Whether the last step of a path is there only for Spark to skip partitions of another table. -#}
    {%- for step in path -%}
        {%- if step.prunes and not loop.last and loop.nextitem.depth > step.depth + 1 -%}
            {{ return(true) }}
        {%- endif -%}
    {%- endfor -%}
    {{ return(false) }}
{%- endmacro %}
