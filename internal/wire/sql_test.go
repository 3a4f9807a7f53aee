package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatements(t *testing.T) {
	for text, want := range map[string]struct{ count, commit int }{
		"":                                     {1, 0},
		" ; ;; ":                               {1, 0},
		"-- commit":                            {1, 0},
		"commit":                               {1, 1},
		" CoMMiT ;":                            {1, 1},
		"commit;commit":                        {2, 1},
		"commit and chain":                     {1, 1},
		"COMMIT PREPARED 'x'":                  {1, 1},
		"END":                                  {1, 1},
		"end transaction; select 1":            {2, 1},
		"/* a /* nested */ ; */commit":         {1, 1},
		"--\ncommit":                           {1, 1},
		"-- x\r\ncommit":                       {1, 1},
		"begin; insert into t values (1); end": {3, 3},
		"rollback; select commit":              {2, 0},
		"select 1; commit; select pg_sleep(1)": {3, 2},
		"select ';commit;'":                    {1, 0},
		"select 'it''s;commit;'; commit":       {2, 2},
		`select '\'; commit`:                   {2, 2},
		`select e'\'; commit'`:                 {1, 0},
		`select E'\\'; commit`:                 {2, 2},
		`select type'\'; commit`:               {2, 2},
		`select ";commit;""";commit`:           {2, 2},
		"select $$;commit;$$; commit":          {2, 2},
		"select $a$;commit;$$;commit;$a$":      {1, 0},
		"select $1;commit":                     {2, 2},
		"select $1$;commit":                    {2, 2},
		"select a$b$;commit;select a$b$":       {3, 2},
		"do $x$ begin commit; end $x$":         {1, 0},
		"(commit)":                             {1, 0},
		"commits":                              {1, 0},
		"commité":                              {1, 0},
		"commit-- and so on":                   {1, 1},
		"select 'never closed;commit":          {1, 0},
		"select $x$never closed;commit":        {1, 0},
		"/* never closed;commit":               {1, 0},
		"create function f() returns int begin atomic select case when true then 1 end; select 2; end; commit":              {2, 2},
		"create or replace procedure p() begin /**/ atomic insert into t values (1); insert into t values (2); end; select": {2, 0},
		"create table t (begin int, atomic int); commit":                                                                    {2, 2},
		"begin; create table atomic (id int); commit":                                                                       {3, 3},
	} {
		count, commit := statements(text)
		require.Equal(t, want, struct{ count, commit int }{count, commit}, text)
	}
}

func FuzzStatements(f *testing.F) {
	for _, text := range []string{"", "begin; end", "$$", "$a", "e'\\", "/*/", "--", "'", "create begin atomic;", "\x00\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		count, commit := statements(text)
		require.GreaterOrEqual(t, count, 1)
		require.LessOrEqual(t, count, 1+strings.Count(text, ";"))
		require.LessOrEqual(t, commit, count)
	})
}
