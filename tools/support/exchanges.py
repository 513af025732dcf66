"""What may have been meant instead: the tables of mutation.py."""

import re

_PLAIN = """
<  ->  <= @3  > @2  >= @1
<=  ->  < @3  >= @1.5  > @1
>  ->  >= @3  < @2  <= @1
>=  ->  > @3  <= @1.5  < @1
==  ->  != @2  >= @0.7  <= @0.7  > @0.5  < @0.5
!=  ->  == @2
===  ->  !== @2
!==  ->  === @2
+  ->  - @3  * @2
-  ->  + @3  * @1  / @0.4
*  ->  + @2  / @2  - @0.7  // @1  ** @0.6
/  ->  * @2  // @2  % @0.5
//  ->  / @2  % @1.5  * @1
%  ->  // @2  / @1.5
**  ->  * @2
+=  ->  -= @2  = @1  *= @1
-=  ->  += @2.5
*=  ->  += @1.5  /= @1
/=  ->  *= @1.5
//=  ->  /= @1
and  ->  or @2.5
or  ->  and @2.5
&&  ->  || @2.5
||  ->  && @2.5
is not  ->  is @2
not in  ->  in @2.5
is  ->  is not @1
True  ->  False @2
False  ->  True @2
true  ->  false @2
false  ->  true @2
break  ->  continue @1
continue  ->  break @1.5
elif  ->  if @0.4
min(  ->  max( @2.5
max(  ->  min( @2.5
any(  ->  all( @2.5
all(  ->  any( @2.5
sum(  ->  len( @1.5
len(  ->  sum( @1.5
int(  ->  str( @0.8  float( @0.8  round( @0.8
str(  ->  int( @0.8
round(  ->  int( @0.5
float(  ->  int( @0.5
set(  ->  list( @0.5
list(  ->  set( @0.5
floor(  ->  ceil( @1.5
ceil(  ->  floor( @1.5
.upper()  ->  .lower() @2  .title() @1  .capitalize() @1
.lower()  ->  .upper() @2  .strip() @0.3
.capitalize()  ->  .title() @1
.title()  ->  .capitalize() @1
.lstrip(  ->  .strip( @1.5  .rstrip( @1
.rstrip(  ->  .strip( @1.5  .lstrip( @1
.strip(  ->  .lstrip( @0.4  .rstrip( @0.4
.startswith(  ->  .endswith( @2
.endswith(  ->  .startswith( @2
.append(  ->  .extend( @1
.extend(  ->  .append( @2
.add(  ->  .discard( @1
.discard(  ->  .add( @1.5
.remove(  ->  .append( @0.7  .add( @0.5
.insert(  ->  .append( @0.5
.keys()  ->  .values() @2  .items() @1.5
.values()  ->  .keys() @1.5  .items() @1
.items()  ->  .values() @0.7  .keys() @0.5
.split(  ->  .rsplit( @1
.rsplit(  ->  .split( @1
.splitlines()  ->  .split() @1.5
.find(  ->  .rfind( @1
.split()  ->  .splitlines() @0.6
.rfind(  ->  .find( @1
.index(  ->  .count( @0.5
.isalpha()  ->  .isdigit() @2
.isdigit()  ->  .isalpha() @1
.isalnum()  ->  .isalpha() @1
.isupper()  ->  .islower() @2
.islower()  ->  .isupper() @2
.pop(0)  ->  .pop() @2
.pop()  ->  .pop(0) @2  .popleft() @0.6
.popleft()  ->  .pop() @1.5
.union(  ->  .intersection( @2
.intersection(  ->  .union( @2
.difference(  ->  .intersection( @1
[0]  ->  [-1] @2  [1] @1.5
[-1]  ->  [0] @2  [-2] @0.5
[1]  ->  [0] @2  [-1] @0.8  [2] @0.8
[-2]  ->  [-1] @1.5
[2]  ->  [1] @0.8
[:1]  ->  [1:] @1.5
[1:]  ->  [:-1] @1
[:-1]  ->  [1:] @1
[::1]  ->  [::-1] @2
[::2]  ->  [::-1] @1.5
[2:]  ->  [1:] @1.5
[:-2]  ->  [:-1] @1.5
.push(  ->  .unshift( @0.7
.unshift(  ->  .push( @1
.shift(  ->  .pop( @1
.pop(  ->  .shift( @0.7
.toUpperCase()  ->  .toLowerCase() @2
.toLowerCase()  ->  .toUpperCase() @2
Math.max(  ->  Math.min( @2.5
Math.min(  ->  Math.max( @2.5
ToUpper(  ->  ToLower( @2
ToLower(  ->  ToUpper( @2
HasPrefix(  ->  HasSuffix( @2
HasSuffix(  ->  HasPrefix( @2
.startsWith(  ->  .endsWith( @2
.endsWith(  ->  .startsWith( @2
.some(  ->  .every( @2
.every(  ->  .some( @2
is 0  ->  is None @2
is not 0  ->  is not None @2
== 0  ->  is None @0.4
0  ->  None @0.2
KeyError  ->  ValueError @0.6  IndexError @0.5
ValueError  ->  KeyError @0.5  TypeError @0.5
IndexError  ->  KeyError @0.5
TypeError  ->  ValueError @0.6
"""
"""A word or sign, and what may stand there instead, each with how likely that is."""

_PATTERNS = r"""
(?<=\()(\w[\w.]*), (\w[\w.]*)(?=\))  ->  \2, \1  @1.5
(?<=return )(\w[\w.]*), (\w[\w.]*)$  ->  \2, \1  @1.5
(?<![-+*/%] )(?<![\w.])([\w.]+(?:\([\w.]*\))?) - ([\w.]+(?:\([\w.]*\))?)(?![\w.([]| [*/%])  ->  \2 - \1  @1.2
(?<![-+*/%] )(?<![\w.])([\w.]+(?:\([\w.]*\))?) (//?) ([\w.]+(?:\([\w.]*\))?)(?![\w.(\[])  ->  \3 \2 \1  @1.2
\b(if|while|elif) (?!not )(?=[\w(])  ->  \1 not   @1.0
\b(if|while|elif|return|and|or) not   ->  \1   @2.0
\breturn (?!not |-|\[|\{|f?['\"]|\d|None|True|False)(?=[\w.]+(\(.*\)|\[.*\])?$)  ->  return not   @0.4
\breturn (?=\w+ (in|is) )  ->  return not   @0.6
(?<!not)(?<=[\w)\]'\"]) in (?=[\w.]+(\(|\[|:| and| or|$))  ->   not in   @0.8
(?<=[\w\])]) = (?=[a-z_(]\w*)(?!None|list|dict|set)  ->   +=   @0.7
\blen\(([\w.]+)\)(?! [-+])  ->  len(\1) - 1  @0.8
\blen\(([\w.]+)\) [-+] 1  ->  len(\1)  @1.5
\(len\(([\w.]+)\) [-+] 1\)  ->  len(\1)  @1.5
(?<=[\w)\]]) [-+] 1\b  ->    @1.5
\brange\((?!.*, )(.+?) [-+] 1\)  ->  range(\1)  @1.0
\brange\(([\w.]+(?:\([\w.]+\))?)\)  ->  range(\1 + 1)  @1.2
\brange\(([\w.]+(?:\([\w.]+\))?)\)  ->  range(1, \1 + 1)  @1.2
\brange\(([\w.]+(?:\([\w.]+\))?)\)  ->  range(1, \1)  @0.9
\brange\(([\w.]+(?:\([\w.]+\))?)\)  ->  range(\1 - 1)  @0.9
\brange\(1,   ->  range(  @1.0
\brange\(0?(?:, )?([\w.]+), ([\w.]+(?:\([\w.]+\))?)\)  ->  range(\1, \2 + 1)  @1.2
\benumerate\(([\w.]+)\)  ->  enumerate(\1, 1)  @1.0
\benumerate\(([\w.]+), (?:start=)?\d\)  ->  enumerate(\1)  @1.2
\bsorted\(([\w.]+(?:\([^()]*\))?)\)  ->  sorted(\1, reverse=True)  @1.0
\.sort\(\)  ->  .sort(reverse=True)  @1.0
(?<=\w), reverse=True  ->    @1.2
\breverse=True  ->    @0.8
(?<![-+*/%] )(?<![\w.])([\w.]+(?:\([^()]*\))? [-+] [\w.]+(?:\([^()]*\))?) (\*|//|/|%)   ->  (\1) \2   @1.5
(?<= )(\*|//|/|%) ([\w.]+ [-+] [\w.]+)(?![\w.(\[])  ->  \1 (\2)  @1.0
\(([\w.]+ [-+] [\w.]+)\) (\*|//|/|%)   ->  \1 \2   @0.6
(?<=[\w)\]])\[::-1\]  ->    @1.0
(?<=[\w)\]])\[1:\]  ->    @0.8
(?<=[\w)\]])\[:-1\]  ->    @0.8
\[:([\w.]+)\]  ->  [\1:]  @1.0
\[([\w.]+):\]  ->  [:\1]  @1.0
\[-([\w.]+):\]  ->  [:\1]  @1.0
\[:([\w.]+)\]  ->  [-\1:]  @0.8
\[:([a-z_][\w.]*)\]  ->  [:\1 + 1]  @0.7
(?<=\[)([\w.]+):([\w.]+)(?=\])  ->  \1:\2 + 1  @0.9
\.(strip|upper|lower|title|split|items|keys|values|copy|isdigit|isalpha|read)(?=[.)\],:]|$| )  ->  .\1()  @2.0
\.get\((['\"\w.]+)\)  ->  .get(\1, 0)  @1.0
\bfor (\w+), (\w+) in   ->  for \2, \1 in   @0.8
\bfor (\w+), (\w+) in ([\w.]+)(?=:|\]|\}|\)|$| if )  ->  for \1, \2 in \3.items()  @1.5
^print\((.*)\)$  ->  return \1  @2.5
\breturn (?=\w+\.\w+\()  ->    @0.1
\bkey=\w+  ->  key=len  @1.0
(?<=, )key=[\w.]+,   ->    @0.5
\.insert\(0,   ->  .append(  @1.2
\.append\(  ->  .insert(0,   @0.7
\.get\((['\"\w.]+), 1\)  ->  .get(\1, 0)  @1.0
\breturn (?=[A-Z]\w*(Error|Exception)\()  ->  raise   @3.0
\braise (?=[A-Z]\w*(Error|Exception)\()  ->  return   @0.3
(?<=[ (\[=,])(['\"][^'\"{]*\{\w[\w.]*[^'\"]*\}[^'\"]*['\"])  ->  f\1  @1.5
\b(str|int|float|len|abs|sum|list|sorted)\(([\w.]+)\)  ->  \2  @0.7
(?<= = )([a-z_][\w.]*)$  ->  list(\1)  @0.2
(?<!\w)if (\w+):$  ->  if \1 is not None:  @0.3
(?<= )(\w[\w.]*) (<=?) (\w[\w.]*) (?=and|or)  ->  \3 \2 \1   @0.3
"""
"""Changes that are no plain exchange: a pattern, what takes its place, how likely that is."""


def exchanged() -> tuple[tuple[re.Pattern[str], str, float], ...]:
    """The plain exchanges as patterns: words as a whole, signs with spaces around them."""
    found: list[tuple[re.Pattern[str], str, float]] = []
    for row in _PLAIN.strip().splitlines():
        old, _, rest = row.partition("  ->  ")
        before = r"(?<![\w.])" if old[0].isalnum() else "(?<= )" if old[0] not in ".[(" else ""
        after = r"(?!\w)" if old[-1].isalnum() else "(?= )" if old[-1] not in "()]" else ""
        pattern = re.compile(before + re.escape(old) + after)
        for item in rest.split("  "):
            new, _, weight = item.rpartition(" @")
            found.append((pattern, new, float(weight)))
    return tuple(found)


def rewritten() -> tuple[tuple[re.Pattern[str], str, float], ...]:
    """The other changes: pattern, replacement with groups as \\1, weight."""
    found: list[tuple[re.Pattern[str], str, float]] = []
    for row in _PATTERNS.strip().splitlines():
        old, _, rest = row.partition("  ->  ")
        new, _, weight = rest.rpartition("  @")
        found.append((re.compile(old), new, float(weight)))
    return tuple(found)
