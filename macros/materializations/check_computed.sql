{% macro check_computed(sql, goal, covered, plan, owner) -%}
    {#-
        Turns a merge into a build if the SELECT computes something from columns of raw that have come, or whose type has
        grown, since the last build: it computes something else from the same row now, and a merge leaves old rows as they
        are.
    -#}
    {%- if plan.step != "merge" or not goal.computes -%}
        {{ return(none) }}
    {%- endif -%}
    {%- set changed = [] -%}
    {%- for table in goal.tables -%}
        {%- set before = covered.get("raw_types", {}).get(table.name) or table.types -%}
        {%- for name, type in table.types.items() if before.get(name) != type and name not in changed -%}
            {#- Spark shortens large structs, by a setting of the session: they cannot be compared. -#}
            {%- do changed.append(name) if "more fields" not in type ~ before.get(name, "") -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- set computed = strandline.computed_from(sql, changed, goal.row_filter) if changed else [] -%}
    {%- if computed -%}
        {%- do plan.update({
            "step": "build",
            "reason": "its SELECT computes from " ~ computed | join(", ") ~ ", which raw did not have, or in another type",
        }) -%}
        {%- do strandline.check_may_build(plan.reason, owner) -%}
    {%- endif -%}
{%- endmacro %}


{% macro computed_from(sql, columns, row_filter=none) -%}
    {#-
        Which of raw's columns a SELECT uses for more than to show them, under whatever name: in a function, a condition,
        a join. A field of a struct is shown, too. In doubt, all.
    -#}
    {%- set plan = strandline.planned(row_filter, sql) if row_filter else strandline.planned(sql) -%}
    {#- A union has the column names of its first table, so above one the source of a column is unknown. -#}
    {%- if plan is none or modules.re.search("(?m)^[:+\\- ]+Union\\b", plan.optimized) -%}
        {{ return(columns) }}
    {%- endif -%}
    {%- set lines = strandline.plan_lines(plan.optimized) -%}
    {%- set found = [] -%}
    {%- for column in columns -%}
        {%- set name = modules.re.escape(column) -%}
        {%- set seen = namespace(ids=[], before=none) -%}
        {%- for line in lines if modules.re.match("[:+\\- ]*Relation(?:V2)?\\b", line) -%}
            {%- do seen.ids.extend(modules.re.findall("(?i)[\\[ ,]" ~ name ~ "#(\\d+)", line)) -%}
        {%- endfor -%}
        {#- Names that it is given later are its own, too. -#}
        {%- for depth in range(50) if seen.ids != seen.before -%}
            {%- set seen.before = seen.ids -%}
            {%- set seen.ids = (seen.ids + modules.re.findall(
                "[\\[ ][^#\\[\\]]*#(?:" ~ seen.ids | join("|") ~ ")L?(?:\\.[^#]*?)? AS [^#]*#(\\d+)", plan.optimized
            ) if seen.ids else []) | unique | list -%}
        {%- endfor -%}
        {%- for line in lines if seen.ids and column not in found -%}
            {%- if not modules.re.match("[:+\\- ]*Relation(?:V2)?\\b", line) -%}
                {%- set used = strandline.more_than_shown(line) -%}
                {%- do found.append(column) if modules.re.search("#(?:" ~ seen.ids | join("|") ~ ")L?(?![0-9])", used) -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(found) }}
{%- endmacro %}


{% macro more_than_shown(line) -%}
    {#- What a line of a plan does besides showing columns, under their names or new ones, or fields of them. -#}
    {%- set columns = modules.re.match("[:+\\- ]*Project \\[(.*)\\]$", line) -%}
    {#- A parenthesis in a text may hide where an argument begins. -#}
    {%- if not columns or line.count("(") != line.count(")") -%}
        {{ return(line) }}
    {%- endif -%}
    {#- What stands in parentheses is an argument. -#}
    {%- set left = namespace(text=columns.group(1), arguments=["none"], more=[]) -%}
    {%- for depth in range(1000) if left.arguments -%}
        {%- set left.arguments = modules.re.findall("\\([^()]*\\)", left.text) -%}
        {%- do left.more.extend(left.arguments) -%}
        {%- set left.text = modules.re.sub("\\([^()]*\\)", "", left.text) -%}
    {%- endfor -%}
    {%- set shown = "(?![-~]|NOT )[^#]*#\\d+L?(?:\\.[^#]*)?(?: AS [^#]*#\\d+L?)?" -%}
    {%- for one in left.text.split(", ") if not modules.re.fullmatch(shown, one) -%}
        {%- do left.more.append(one) -%}
    {%- endfor -%}
    {{ return(left.more | join(" ")) }}
{%- endmacro %}
