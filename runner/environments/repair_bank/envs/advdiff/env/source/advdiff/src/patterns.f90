! Reaction and diffusion without a flow: Fisher-KPP fronts and Gray-Scott patterns.
module patterns_model
  use kinds, only: dp, ghosts
  use deck, only: deck_t
  use grid, only: grid_t
  use boundary, only: fill_ghosts
  use diffusion, only: add_diffusion
  use reaction, only: kinetics_t, add_reaction
  implicit none

  type(deck_t) :: d
  type(grid_t) :: g
  type(kinetics_t) :: k

contains

  subroutine rhs(q, tendency)
    real(dp), intent(inout) :: q(1-ghosts:, 1-ghosts:, :)
    real(dp), intent(out) :: tendency(:, :, :)
    integer :: s
    tendency = 0.0_dp
    do s = 1, size(q, 3)
      call fill_ghosts(d, q(:, :, s))
      call add_diffusion(g, k%diffusivity(s), q(:, :, s), tendency(:, :, s))
    end do
    call add_reaction(k, g, q, tendency)
  end subroutine rhs

end module patterns_model

program patterns
  use kinds, only: dp
  use deck, only: read_deck
  use grid, only: make_grid
  use reaction, only: make_kinetics
  use stepper, only: stable_step
  use simulation, only: run, arguments
  use patterns_model, only: d, g, k, rhs
  implicit none
  character(len=:), allocatable :: deck_path, folder

  call arguments(deck_path, folder)
  d = read_deck(deck_path)
  g = make_grid(d)
  k = make_kinetics(d)
  call run(d, g, rhs, stable_step(d, g, 0.0_dp, maxval(k%diffusivity)), folder)
end program patterns
